// The attributes of an op, for shape functions and kernels alike.
#ifndef TF_TI_CC_SPEC_ATTRIBUTES_H_
#define TF_TI_CC_SPEC_ATTRIBUTES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cc/status.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

// A view of anything that has GetAttr(name, &value), as an InferenceContext and an
// OpKernelConstruction have. These share no base, and a specification sees neither.
class Attributes {
 public:
  template <typename Context>
  explicit Attributes(const Context* context) : context_(context), get_(&GetFrom<Context>) {}

  template <typename T>
  absl::Status Get(const char* name, T* value) const {
    return get_(context_, name, value);
  }

  // Gets a list of which the op must have `size` elements.
  template <typename T>
  absl::Status GetList(const char* name, size_t size, std::vector<T>* list) const {
    TF_RETURN_IF_ERROR(Get(name, list));
    if (list->size() == size) return absl::OkStatus();
    return InvalidArgument(name, " needs ", size, " elements, got ", list->size());
  }

  // Gets the number of tensors that an optional input or output has.
  absl::Status GetOptional(const char* name, int* count) const {
    TF_RETURN_IF_ERROR(Get(name, count));
    if (*count <= 1) return absl::OkStatus();
    return InvalidArgument(name, " must be 0 or 1, got ", *count);
  }

 private:
  using Value =
      std::variant<bool*, int32_t*, int64_t*, std::string*, tensorflow::DataType*,
                   std::vector<int32_t>*, std::vector<int64_t>*, std::vector<std::string>*,
                   tensorflow::DataTypeVector*, std::vector<tensorflow::PartialTensorShape>*,
                   std::vector<tensorflow::NameAttrList>*>;

  template <typename Context>
  static absl::Status GetFrom(const void* context, const char* name, const Value& value) {
    return std::visit(
        [&](auto* found) { return static_cast<const Context*>(context)->GetAttr(name, found); },
        value);
  }

  const void* const context_;
  absl::Status (*const get_)(const void*, const char*, const Value&);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_ATTRIBUTES_H_
