// Sentences of errors about loops. A number may be given as text: an XLA computation fills in those
// that are known only when it runs.
#ifndef TF_TI_CC_SPEC_LOOPS_ERRORS_H_
#define TF_TI_CC_SPEC_LOOPS_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace tf_ti {

template <typename N>
std::string IsNegative(const std::string& label, const N& number) {
  return absl::StrCat(label, " must not be negative, got ", number);
}

template <typename N, typename M>
std::string CountsDiffer(const std::string& from, const N& count, const std::string& label,
                         const M& other) {
  return absl::StrCat(from, " gives ", count, " iterations, but ", label, " gives ", other);
}

// An iterator has too few elements for the iterations.
template <typename N, typename M>
std::string IteratorEnds(const std::string& label, int64_t axis, const N& num_elements,
                         const std::string& from, const M& count) {
  return absl::StrCat(label, ": there are ", num_elements, " elements along axis ", axis, ", but ",
                      from, " gives ", count, " iterations");
}

// A condition asks for iterations that an iterator has no elements for. `end` is what it reads
// past.
template <typename N>
std::string ReadsPast(const std::string& label, int64_t axis, const N& iteration,
                      const std::string& end) {
  return absl::StrCat(label, ": iteration ", iteration, " reads past the ", end, " along axis ",
                      axis);
}

template <typename N>
std::string LengthEnds(const std::string& label, int64_t length, const N& count) {
  return absl::StrCat(label, ": the length is ", length, ", but the loop has ", count,
                      " iterations");
}

// A piece of a concatenation has another extent than it should have.
inline std::string IsNoPart(const std::string& label, int64_t part_size, const std::string& shape) {
  return absl::StrCat(label, ": part_size is ", part_size, ", but the body's result has shape ",
                      shape);
}

inline std::string HasNoCount(const std::string& limit_label) {
  return absl::StrCat("no input is sliced and ", limit_label,
                      " is not given: the number of iterations is unknown");
}

// A list is written at an index.
template <typename N>
std::string IndexIsNegative(const std::string& label, const N& index) {
  return absl::StrCat(label, ": index ", index, " is written, which is negative");
}

inline std::string HasNoLast(const std::string& label, int result) {
  return absl::StrCat(label,
                      ": the loop has no iterations, so there is no last value, and no back edge ",
                      "gives result ", result, " an initial one");
}

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_LOOPS_ERRORS_H_
