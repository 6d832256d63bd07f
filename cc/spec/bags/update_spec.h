// The contract of the ops that update rows of variables: their attributes, the positions of their
// inputs, and their shapes.
#ifndef TF_TI_CC_SPEC_BAGS_UPDATE_SPEC_H_
#define TF_TI_CC_SPEC_BAGS_UPDATE_SPEC_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/spec/attributes.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"

namespace tf_ti {

enum class UpdateRule { kDescent, kAdam, kAdagrad };

struct UpdateSpec {
  struct Number {
    const char* name;
    tensorflow::DataType dtype;
  };

  UpdateRule rule = UpdateRule::kDescent;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;      // of the variable
  tensorflow::DataType sum_dtype = tensorflow::DT_INVALID;  // of sums of gradients, and of slots
  // The inputs are the variable; its slots; the rows and their gradients, or `bags`; the numbers.
  std::vector<const char*> slots;
  std::optional<BagSpec> bags;
  std::vector<Number> numbers;
  int first_number = 0;
  bool are_distinct = false;
  bool has_decay = false;  // kDescent: weight_decay is among the numbers
  bool flag = false;       // epsilon_hat of kAdam, epsilon_inside_sqrt of kAdagrad

  absl::Status Init(const Attributes& attributes, UpdateRule rule);

  int num_slots() const { return slots.size(); }
  int num_numbers() const { return numbers.size(); }
  // The first input after the variable and its slots.
  int gradients() const { return 1 + num_slots(); }

  // Check the shape of the variable; that of its slot i, which `is_row_wise` where it has one
  // number a row, as the last may have.
  template <typename Shape>
  absl::Status CheckVariable(const Shape& variable) const;
  template <typename Shape>
  absl::Status CheckSlot(int i, const Shape& slot, const Shape& variable, bool* is_row_wise) const;

  // Checks the shapes of the gradients' inputs. `find(input, name, &shape)` gets one.
  template <typename Shape, typename Find>
  absl::Status CheckGradients(const Find& find, const Shape& variable) const;

  template <typename Shape>
  absl::Status CheckNumber(int i, const Shape& shape, tensorflow::DataType type) const;
};

template <typename Shape>
absl::Status UpdateSpec::CheckVariable(const Shape& variable) const {
  if (variable.unknown_rank() || variable.dims() > 0) return absl::OkStatus();
  return InvalidArgument("the variable must have rank 1 or more");
}

template <typename Shape>
absl::Status UpdateSpec::CheckSlot(int i, const Shape& slot, const Shape& variable,
                                   bool* is_row_wise) const {
  *is_row_wise = false;
  if (MayBeEqual(slot, variable)) return absl::OkStatus();
  const bool is_last = i + 1 == num_slots();
  Shape row_wise;
  const int64_t dims[] = {variable.dim_size(0), 1};
  TF_RETURN_IF_ERROR(Shape::BuildTensorShapeBase(dims, &row_wise));
  *is_row_wise = is_last && MayBeEqual(slot, row_wise);
  if (*is_row_wise) return absl::OkStatus();
  return InvalidArgument(slots[i], " must have the variable's shape ", variable.DebugString(),
                         is_last ? absl::StrCat(", or ", row_wise.DebugString()) : "", ", got ",
                         slot.DebugString());
}

template <typename Shape, typename Find>
absl::Status UpdateSpec::CheckGradients(const Find& find, const Shape& variable) const {
  Shape shape;
  int64_t count;
  if (bags.has_value()) {
    TF_RETURN_IF_ERROR(bags->CheckGradientShapes(find, &shape, &count));
    return CheckRowsOf("grad", shape, count, variable);
  }
  TF_RETURN_IF_ERROR(find(gradients(), "indices", &shape));
  TF_RETURN_IF_ERROR(CheckRank("indices", shape, 1));
  count = shape.unknown_rank() ? -1 : shape.dim_size(0);
  TF_RETURN_IF_ERROR(find(gradients() + 1, "values", &shape));
  return CheckRowsOf("values", shape, count, variable);
}

template <typename Shape>
absl::Status UpdateSpec::CheckNumber(int i, const Shape& shape, tensorflow::DataType type) const {
  const Number& number = numbers[i];
  if (shape.dims() <= 0 && type == number.dtype) return absl::OkStatus();
  return InvalidArgument(number.name, " must be a scalar of type ",
                         tensorflow::DataTypeString(number.dtype), ", got one of type ",
                         tensorflow::DataTypeString(type), " and shape ", shape.DebugString());
}

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_BAGS_UPDATE_SPEC_H_
