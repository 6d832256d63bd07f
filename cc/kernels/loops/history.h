// A history: a list of tensors in a scalar variant, one value an iteration. It holds references, so
// that keeping a value copies nothing. Its elements may differ in shape.
//
// Where a program runs many iterations at once it writes their values into one block instead, and
// reads them from there. They become tensors when somebody asks for them.
#ifndef TF_TI_CC_KERNELS_LOOPS_HISTORY_H_
#define TF_TI_CC_KERNELS_LOOPS_HISTORY_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_ti {

// Values of one shape for elements [begin, end) of a history, each in a row of its own.
class HistoryBlock {
 public:
  // Rows are as long as memory that TensorFlow's kernels accept.
  static int64_t RowElements(tensorflow::DataType dtype, const tensorflow::TensorShape& shape);

  HistoryBlock() = default;
  // `rows` is [end or more, RowElements].
  HistoryBlock(int64_t begin, int64_t end, const tensorflow::TensorShape& shape,
               tensorflow::Tensor rows)
      : begin_(begin), end_(end), shape_(shape), rows_(std::move(rows)) {}

  bool Has(int64_t k) const { return k >= begin_ && k < end_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  tensorflow::DataType dtype() const { return rows_.dtype(); }
  const char* Row(int64_t k) const;
  tensorflow::Tensor TensorAt(int64_t k) const;

 private:
  int64_t begin_ = 0;
  int64_t end_ = 0;
  tensorflow::TensorShape shape_;
  tensorflow::Tensor rows_;
};

class History {
 public:
  History() : History(std::vector<tensorflow::Tensor>()) {}
  // Elements that the block has are empty tensors in `tensors`, if that has any.
  explicit History(std::vector<tensorflow::Tensor> tensors, HistoryBlock block = {})
      : values_(std::make_shared<Values>(std::move(tensors), std::move(block))) {}

  int64_t size() const { return std::max<int64_t>(values_->tensors.size(), values_->block.end()); }
  const std::vector<tensorflow::Tensor>& tensors() const;
  // One of the tensors; does not make the others.
  tensorflow::Tensor TensorAt(int64_t k) const;
  // The memory of element k if it has this type and shape, or null.
  const char* Find(int64_t k, tensorflow::DataType dtype,
                   const tensorflow::TensorShape& shape) const;

  static const char kTypeName[];
  std::string TypeName() const { return kTypeName; }
  std::string DebugString() const;
  void Encode(tensorflow::VariantTensorData* data) const;
  bool Decode(const tensorflow::VariantTensorData& data);

 private:
  struct Values {
    Values(std::vector<tensorflow::Tensor> tensors, HistoryBlock block)
        : tensors(std::move(tensors)), block(std::move(block)) {}

    const std::vector<tensorflow::Tensor> tensors;
    const HistoryBlock block;
    std::once_flag once;                  // guards `all`
    std::vector<tensorflow::Tensor> all;  // the elements, if there is a block
  };

  std::shared_ptr<Values> values_;
};

// The history that the scalar variant `tensor` holds; an error that names `what` otherwise.
absl::Status GetHistory(const tensorflow::Tensor& tensor, const std::string& what,
                        const History** history);

tensorflow::Tensor HistoryTensor(History history);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_HISTORY_H_
