// A history: a list of tensors in a scalar variant, one value an iteration. It holds references, so
// that keeping a value copies nothing. Its elements may differ in shape.
#ifndef TF_TI_CC_KERNELS_LOOPS_HISTORY_H_
#define TF_TI_CC_KERNELS_LOOPS_HISTORY_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_ti {

class History {
 public:
  History() : tensors_(std::make_shared<const std::vector<tensorflow::Tensor>>()) {}
  explicit History(std::vector<tensorflow::Tensor> tensors)
      : tensors_(std::make_shared<const std::vector<tensorflow::Tensor>>(std::move(tensors))) {}

  const std::vector<tensorflow::Tensor>& tensors() const { return *tensors_; }

  static const char kTypeName[];
  std::string TypeName() const { return kTypeName; }
  std::string DebugString() const;
  void Encode(tensorflow::VariantTensorData* data) const;
  bool Decode(const tensorflow::VariantTensorData& data);

 private:
  std::shared_ptr<const std::vector<tensorflow::Tensor>> tensors_;
};

// The history that the scalar variant `tensor` holds; an error that names `what` otherwise.
absl::Status GetHistory(const tensorflow::Tensor& tensor, const std::string& what,
                        const History** history);

tensorflow::Tensor HistoryTensor(History history);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_HISTORY_H_
