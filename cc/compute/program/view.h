// Arrays, wherever their elements lie in memory.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_VIEW_H_
#define TF_TI_CC_COMPUTE_PROGRAM_VIEW_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace tf_ti {

// A half precision number, of kHalf or kBFloat16, is a float of the same value. kHalfBits and
// kBFloat16Bits are the 16 bits that it has in inputs and outputs, and nowhere else.
enum class ElementType : uint8_t {
  kFloat,
  kDouble,
  kHalf,
  kBFloat16,
  kInt32,
  kInt64,
  kBool,
  kHalfBits,
  kBFloat16Bits
};

// Of arrays that operations have.
constexpr int kNumElementTypes = 7;

// In bytes. A bool is a byte, 0 or 1.
inline int64_t SizeOf(ElementType type) {
  constexpr int64_t kSizes[] = {4, 8, 4, 4, 4, 8, 1, 2, 2};
  return kSizes[static_cast<int>(type)];
}

inline bool IsReal(ElementType type) { return type <= ElementType::kBFloat16; }
inline bool IsHalf(ElementType type) {
  return type == ElementType::kHalf || type == ElementType::kBFloat16;
}
// The type of elements as inputs and outputs have them.
inline ElementType StoredAs(ElementType type) {
  if (type == ElementType::kHalf) return ElementType::kHalfBits;
  return type == ElementType::kBFloat16 ? ElementType::kBFloat16Bits : type;
}
// The type that instructions compute with.
inline ElementType ComputedAs(ElementType type) {
  return IsHalf(type) ? ElementType::kFloat : type;
}

using Dims = std::vector<int64_t>;

// The product of the dimensions, but at most 2^56: no array has as many elements.
inline int64_t CountOf(const Dims& dims) {
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(count, dim, &count) || count > kMost) count = kMost;
  }
  return count;
}

// The way of a view from one iteration of a loop within a program to the next.
struct Move {
  int loop;                 // the loop's number
  int64_t step;             // in bytes
  bool alternates;          // every second iteration moves back
  bool ends_there = false;  // the view is where the last iteration has it, not the first one
};

// An array among the bytes of a block of memory. What only changes the view costs nothing when a
// program runs.
struct View {
  int block = 0;
  ElementType type = ElementType::kFloat;
  int64_t offset = 0;  // in bytes, as are the strides
  Dims dims;
  Dims strides;
  std::vector<Move> moves;  // one for each loop at most

  // All of a block, in the order of its elements.
  static View Whole(int block, ElementType type, Dims dims);

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t count() const { return CountOf(dims); }
  int64_t bytes() const { return count() * SizeOf(type); }
  // True if the elements lie one behind the other, in order.
  bool IsContiguous() const;

  // Repeats along dimensions of 1, and along new first ones.
  View BroadcastTo(const Dims& to) const;
  View Transpose(const std::vector<int>& order) const;
  // `size` elements from `begin` on, each `step` behind the one before, along a dimension.
  View Slice(int dim, int64_t begin, int64_t size, int64_t step) const;
  View WithDim(int at) const;  // a new dimension of 1
  View WithoutDim(int dim) const;
  // Joins `count` neighbouring dimensions, if one stride leads through their elements.
  std::optional<View> Merged(int first, int count) const;
  // Of a contiguous view.
  View Reshape(Dims to) const;
  // The view that moves in a loop.
  View Moving(const Move& move) const;
};

// The dimensions of a result that both operands are repeated to, if they fit each other.
std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_VIEW_H_
