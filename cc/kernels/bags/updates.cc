// The kernels that update rows of variables in place.
#include "cc/compute/bags/updates.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/kernels/bags/bags.h"
#include "cc/kernels/bags/huge_pages.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/threads.h"

#if GOOGLE_CUDA
#include "cc/compute/bags/updates_gpu.h"
#endif

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

// Makes the variable the sole owner of its value, whose rows may then be written where they are.
// Readers of all of it keep the value that they have read: the variable gets other memory. The
// caller has locked it.
absl::Status MakeUnshared(OpKernelContext* ctx, Var* variable) {
  Tensor* const tensor = variable->tensor();
  if (!tensor->RefCountIsOne()) {
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    Tensor copy;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensor->dtype(), tensor->shape(), &copy, attributes));
    TF_RETURN_IF_ERROR(CopyNumbers(ctx, *tensor, &copy));
    *tensor = copy;
  }
  AdviseOnce(ctx, variable);
  return absl::OkStatus();
}

// The CPU checks indices before it writes.
template <typename Index>
absl::Status CheckRows(OpKernelContext*, const Bags<Index>&, int64_t, Threads*) {
  return absl::OkStatus();
}

#if GOOGLE_CUDA
// On a GPU a check would wait.
template <typename Index>
absl::Status CheckRows(OpKernelContext* ctx, const Bags<Index>& rows, int64_t num_rows,
                       KernelGpu* gpu) {
  if (!ChecksIds()) return absl::OkStatus();
  return CheckOnGpu(
      ctx,
      [&](GpuProblem* problem) {
        return CheckIndices(rows.indices, rows.count, num_rows, gpu, problem);
      },
      [&](const GpuProblem& problem) { return DescribeProblem(num_rows, problem); });
}
#endif

// The variables that the first inputs are the handles of, locked as long as this object lives. They
// are always locked in the same order, so that no two updates wait for one another.
class LockedVariables {
 public:
  LockedVariables() = default;
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables() {
    for (Var* variable : locked_) variable->mu()->unlock();
  }

  // `names` are for error messages.
  absl::Status Lock(OpKernelContext* ctx, const std::vector<std::string>& names) {
    names_ = names;
    variables_.resize(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor& handle = ctx->input(i);
      if (handle.dims() != 0) {
        return InvalidArgument("the handle of ", names[i], " must be a scalar, got shape ",
                               handle.shape().DebugString());
      }
      TF_RETURN_IF_ERROR(
          tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, i), &variables_[i]));
      for (size_t k = 0; k < i; ++k) {
        if (variables_[k].get() == variables_[i].get()) {
          return InvalidArgument(names[k], " and ", names[i], " are the same variable");
        }
      }
    }
    for (const auto& variable : variables_) locked_.push_back(variable.get());
    std::sort(locked_.begin(), locked_.end(), std::less<Var*>());
    for (Var* variable : locked_) variable->mu()->lock();
    for (size_t i = 0; i < names.size(); ++i) {
      if (!variables_[i]->is_initialized) {
        return absl::FailedPreconditionError(absl::StrCat(names[i], " is not initialized"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status MakeUnshared(OpKernelContext* ctx) {
    for (const auto& variable : variables_) {
      TF_RETURN_IF_ERROR(tf_ti::MakeUnshared(ctx, variable.get()));
    }
    return absl::OkStatus();
  }

  const std::string& name(int i) const { return names_[i]; }
  Tensor* tensor(int i) const { return variables_[i]->tensor(); }

 private:
  std::vector<std::string> names_;
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
  std::vector<Var*> locked_;
};

absl::Status CheckType(const LockedVariables& variables, int i, DataType expected,
                       const char* others) {
  const DataType dtype = variables.tensor(i)->dtype();
  if (dtype == expected) return absl::OkStatus();
  return InvalidArgument(variables.name(i), " has type ", DataTypeString(dtype), ", but ", others,
                         " have type ", DataTypeString(expected));
}

absl::Status CheckScalar(const char* name, const Tensor& tensor, DataType dtype) {
  if (tensor.dims() == 0 && tensor.dtype() == dtype) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar of type ", DataTypeString(dtype),
                         ", got one of type ", DataTypeString(tensor.dtype()), " and shape ",
                         tensor.shape().DebugString());
}

// The basics of these ops: a variable with its slots, and rows with their gradients, or bags of
// rows with the gradients of a look-up's output.
template <typename T, typename Index, typename Device>
class UpdateOp : public tensorflow::OpKernel {
 public:
  UpdateOp(OpKernelConstruction* ctx, std::vector<std::string> names)
      : OpKernel(ctx), names_(std::move(names)) {
    const int at = variables_size();
    first_number_ = at + 2;
    if (!ctx->HasAttr("bags")) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("are_distinct", &are_distinct_));
      return;
    }
    bags_.emplace();
    OP_REQUIRES_OK(ctx, bags_->InitGradient(ctx, at + 1));
    first_number_ = bags_->end + (bags_->reduction == Reduction::kMax);
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, variables.Lock(ctx, names_));
    OP_REQUIRES_OK(ctx, CheckVariables(variables));
    RowGradientsOf<E, Index> gradients;
    OP_REQUIRES_OK(ctx, bags_.has_value() ? GetBags(ctx, *variables.tensor(0), &gradients)
                                          : GetRows(ctx, *variables.tensor(0), &gradients));
    OP_REQUIRES_OK(ctx, CheckNumbers(ctx));
    OP_REQUIRES_OK(ctx, variables.MakeUnshared(ctx));
    Device device(ctx);
    OP_REQUIRES_OK(ctx, gradients.are_rows
                            ? CheckRows(ctx, gradients.bags, gradients.num_rows, &device)
                            : CheckValues(ctx, gradients.bags, gradients.num_rows, &device));
    OP_REQUIRES_OK(ctx, ToStatus(Update(ctx, variables, gradients, &device), &device));
  }

 protected:
  using E = Element<T>;
  using S = Sum<E>;

  // The position of the rule's numbers among the inputs.
  int first_number() const { return first_number_; }

  static DataType SumType() {
    return std::is_same_v<T, E> ? DataTypeToEnum<T>::value : tensorflow::DT_FLOAT;
  }

  // Slots may have one element for each row.
  static Slot<S> GetSlot(const LockedVariables& variables, int i) {
    Tensor* const tensor = variables.tensor(i);
    return {Elements<S>(tensor), tensor->shape() != variables.tensor(0)->shape()};
  }

  virtual absl::Status CheckNumbers(OpKernelContext* ctx) const = 0;
  virtual std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                             const RowGradientsOf<E, Index>& gradients, Device* device) const = 0;

 private:
  int variables_size() const { return static_cast<int>(names_.size()); }

  absl::Status CheckVariables(const LockedVariables& variables) const {
    const char* const others = bags_.has_value() ? "gradients" : "values";
    TF_RETURN_IF_ERROR(CheckType(variables, 0, DataTypeToEnum<T>::value, others));
    const TensorShape& shape = variables.tensor(0)->shape();
    if (shape.dims() == 0) return InvalidArgument("the variable must have rank 1 or more");
    for (int i = 1; i < variables_size(); ++i) {
      TF_RETURN_IF_ERROR(CheckType(variables, i, SumType(), "sums of values"));
      const TensorShape& slot = variables.tensor(i)->shape();
      const bool may_be_row_wise = i + 1 == variables_size();  // the second moments alone
      const TensorShape row_wise({shape.dim_size(0), 1});
      if (slot != shape && !(may_be_row_wise && slot == row_wise)) {
        return InvalidArgument(variables.name(i), " must have the variable's shape ",
                               shape.DebugString(),
                               may_be_row_wise ? absl::StrCat(", or ", row_wise.DebugString()) : "",
                               ", got ", slot.DebugString());
      }
    }
    return absl::OkStatus();
  }

  absl::Status GetRows(OpKernelContext* ctx, const Tensor& table,
                       RowGradientsOf<E, Index>* gradients) const {
    const Tensor& indices = ctx->input(variables_size());
    const Tensor& values = ctx->input(variables_size() + 1);
    if (indices.dims() != 1) {
      return InvalidArgument("indices must have rank 1, got shape ", indices.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckShape("values", values, indices.NumElements(), table));
    *gradients = GradientsOfRows(Elements<Index>(indices), Elements<E>(values),
                                 indices.NumElements(), table.dim_size(0), Width(table));
    gradients->are_distinct = are_distinct_;
    return absl::OkStatus();
  }

  absl::Status GetBags(OpKernelContext* ctx, const Tensor& table,
                       RowGradientsOf<E, Index>* gradients) const {
    BagGradients<E, Index> given;
    TF_RETURN_IF_ERROR(given.Get(ctx, *bags_));
    TF_RETURN_IF_ERROR(CheckShape("grad", *given.grad, given.bags.count, table));
    gradients->bags = given.bags;
    gradients->weights = given.weights;
    gradients->reduction = bags_->reduction;
    gradients->argmax = given.argmax;
    gradients->grad = Elements<E>(*given.grad);
    gradients->num_rows = table.dim_size(0);
    gradients->width = Width(table);
    return absl::OkStatus();
  }

  static absl::Status CheckShape(const char* name, const Tensor& rows, int64_t count,
                                 const Tensor& table) {
    TensorShape expected;
    TF_RETURN_IF_ERROR(RowsShape(count, table.shape(), &expected));
    if (rows.shape() == expected) return absl::OkStatus();
    return InvalidArgument(name, " must have shape ", expected.DebugString(), ", got ",
                           rows.shape().DebugString());
  }

  static int64_t Width(const Tensor& table) {
    return table.dim_size(0) == 0 ? 0 : table.NumElements() / table.dim_size(0);
  }

  const std::vector<std::string> names_;
  std::optional<BagOptions> bags_;
  bool are_distinct_ = false;
  int first_number_;
};

template <typename T, typename Index, typename Device>
class ScatterSubOp : public UpdateOp<T, Index, Device> {
 public:
  explicit ScatterSubOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, {"the variable"}) {
    int num_decay;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_decay", &num_decay));
    OP_REQUIRES(ctx, num_decay <= 1, InvalidArgument("num_decay must be 0 or 1, got ", num_decay));
    OP_REQUIRES(ctx, num_decay == 0 || kHasDecay,
                InvalidArgument("weight_decay needs a variable of floats"));
    has_decay_ = num_decay == 1;
  }

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;
  using Gradients = RowGradientsOf<E, Index>;

  static constexpr bool kHasDecay =
      std::is_floating_point_v<Sum<Element<T>>> && !IsComplex<Element<T>>::value;

  absl::Status CheckNumbers(OpKernelContext* ctx) const override {
    const DataType dtype = Base::SumType();
    TF_RETURN_IF_ERROR(CheckScalar("scale", scale(ctx), dtype));
    if (!has_decay_) return absl::OkStatus();
    return CheckScalar("weight_decay", weight_decay(ctx), dtype);
  }

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const Gradients& gradients, Device* device) const override {
    return Update(ctx, gradients, device, Elements<E>(variables.tensor(0)));
  }

  std::string Update(OpKernelContext* ctx, const Gradients& gradients, Threads* threads,
                     E* table) const {
    const S scale = Number(this->scale(ctx));
    if constexpr (kHasDecay) {
      if (has_decay_ || !gradients.are_rows) {
        const double decay = has_decay_ ? Number(weight_decay(ctx)) : S(0);
        return DecayedScatterSub(gradients, scale, decay, threads, table);
      }
    }
    return ScatterSub(gradients, scale, threads, table);
  }

#if GOOGLE_CUDA
  std::string Update(OpKernelContext* ctx, const Gradients& gradients, KernelGpu* gpu,
                     E* table) const {
    if (has_decay_) {
      return DecayedScatterSub(gradients, Elements<S>(scale(ctx)), Elements<S>(weight_decay(ctx)),
                               gpu, table);
    }
    return ScatterSub(gradients, Elements<S>(scale(ctx)), gpu, table);
  }
#endif

  const Tensor& scale(OpKernelContext* ctx) const { return ctx->input(this->first_number()); }
  const Tensor& weight_decay(OpKernelContext* ctx) const {
    return ctx->input(this->first_number() + 1);
  }
  // Integers add up in more bits than the scale has.
  static S Number(const Tensor& tensor) {
    if constexpr (std::is_same_v<T, E>) {
      return tensor.scalar<T>()();
    } else {
      return tensor.scalar<float>()();
    }
  }

  bool has_decay_ = false;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An error where a number on the host lies outside of [least, end).
absl::Status CheckNumber(OpKernelContext* ctx, const char* name, int input, double least,
                         double end) {
  const Tensor& tensor = ctx->input(input);
  TF_RETURN_IF_ERROR(CheckScalar(name, tensor, tensorflow::DT_DOUBLE));
  const double value = tensor.scalar<double>()();
  if (value >= least && value < end) return absl::OkStatus();
  return InvalidArgument(name, " must be at least ", least,
                         end < kInfinity ? absl::StrCat(" and below ", end) : " and finite",
                         ", got ", value);
}

template <typename T, typename Index, typename Device>
class AdamUpdateOp : public UpdateOp<T, Index, Device> {
 public:
  explicit AdamUpdateOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, {"the variable", "m", "v"}) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon_hat", &epsilon_hat_));
  }

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;

  absl::Status CheckNumbers(OpKernelContext* ctx) const override {
    int i = this->first_number();
    TF_RETURN_IF_ERROR(CheckScalar("learning_rate", ctx->input(i++), Base::SumType()));
    const Tensor& step = ctx->input(i++);
    TF_RETURN_IF_ERROR(CheckScalar("step", step, tensorflow::DT_INT64));
    if (std::is_same_v<Device, Threads> && step.scalar<int64_t>()() < 1) {
      return InvalidArgument("step must be at least 1, got ", step.scalar<int64_t>()());
    }
    TF_RETURN_IF_ERROR(CheckNumber(ctx, "beta_1", i++, 0, 1));
    TF_RETURN_IF_ERROR(CheckNumber(ctx, "beta_2", i++, 0, 1));
    TF_RETURN_IF_ERROR(CheckNumber(ctx, "epsilon", i++, 0, kInfinity));
    return CheckNumber(ctx, "weight_decay", i++, 0, kInfinity);
  }

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const RowGradientsOf<E, Index>& gradients, Device* device) const override {
    const int i = this->first_number();
    AdamNumbers numbers;
    numbers.beta_1 = ctx->input(i + 2).scalar<double>()();
    numbers.beta_2 = ctx->input(i + 3).scalar<double>()();
    numbers.epsilon = ctx->input(i + 4).scalar<double>()();
    numbers.weight_decay = ctx->input(i + 5).scalar<double>()();
    numbers.epsilon_hat = epsilon_hat_;
    S* const m = Elements<S>(variables.tensor(1));
    const Slot<S> v = Base::GetSlot(variables, 2);
    E* const table = Elements<E>(variables.tensor(0));
    const Tensor &learning_rate = ctx->input(i), &step = ctx->input(i + 1);
    if constexpr (std::is_same_v<Device, Threads>) {
      numbers.learning_rate = learning_rate.scalar<S>()();
      numbers.step = step.scalar<int64_t>()();
      return AdamUpdate(gradients, numbers, m, v, device, table);
    } else {
      return AdamUpdate(gradients, numbers, Elements<S>(learning_rate), Elements<int64_t>(step), m,
                        v, device, table);
    }
  }

  bool epsilon_hat_;
};

template <typename T, typename Index, typename Device>
class AdagradUpdateOp : public UpdateOp<T, Index, Device> {
 public:
  explicit AdagradUpdateOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, {"the variable", "accumulator"}) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon_inside_sqrt", &epsilon_inside_sqrt_));
  }

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;

  absl::Status CheckNumbers(OpKernelContext* ctx) const override {
    const int i = this->first_number();
    TF_RETURN_IF_ERROR(CheckScalar("learning_rate", ctx->input(i), Base::SumType()));
    return CheckNumber(ctx, "epsilon", i + 1, 0, kInfinity);
  }

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const RowGradientsOf<E, Index>& gradients, Device* device) const override {
    const int i = this->first_number();
    AdagradNumbers numbers;
    numbers.epsilon = ctx->input(i + 1).scalar<double>()();
    numbers.epsilon_inside_sqrt = epsilon_inside_sqrt_;
    const Slot<S> accumulator = Base::GetSlot(variables, 1);
    E* const table = Elements<E>(variables.tensor(0));
    const Tensor& learning_rate = ctx->input(i);
    if constexpr (std::is_same_v<Device, Threads>) {
      numbers.learning_rate = learning_rate.scalar<S>()();
      return AdagradUpdate(gradients, numbers, accumulator, device, table);
    } else {
      return AdagradUpdate(gradients, numbers, Elements<S>(learning_rate), accumulator, device,
                           table);
    }
  }

  bool epsilon_inside_sqrt_;
};

#define TF_TI_REGISTER_INDEX(device, computer, definition, Op, T, Index)                  \
  REGISTER_KERNEL_BUILDER(                                                                \
      definition.Device(device).TypeConstraint<T>("T").TypeConstraint<Index>("Tindices"), \
      Op<T, Index, computer>);
#define TF_TI_REGISTER_BOTH(device, computer, definition, Op, T)     \
  TF_TI_REGISTER_INDEX(device, computer, definition, Op, T, int32_t) \
  TF_TI_REGISTER_INDEX(device, computer, definition, Op, T, int64_t)

#define TF_TI_REGISTER_SCATTER_SUB(T) \
  TF_TI_REGISTER_BOTH(tensorflow::DEVICE_CPU, Threads, Name("TfTi>ScatterSub"), ScatterSubOp, T)
TF_CALL_INTEGRAL_TYPES(TF_TI_REGISTER_SCATTER_SUB);
TF_CALL_half(TF_TI_REGISTER_SCATTER_SUB);
TF_CALL_bfloat16(TF_TI_REGISTER_SCATTER_SUB);
TF_CALL_float(TF_TI_REGISTER_SCATTER_SUB);
TF_CALL_double(TF_TI_REGISTER_SCATTER_SUB);
TF_CALL_COMPLEX_TYPES(TF_TI_REGISTER_SCATTER_SUB);

#define TF_TI_REGISTER_CPU(name, Op, T) \
  TF_TI_REGISTER_BOTH(tensorflow::DEVICE_CPU, Threads, Name("TfTi>" name), Op, T)
#define TF_TI_REGISTER_UPDATES(T)                               \
  TF_TI_REGISTER_CPU("EmbeddingBagScatterSub", ScatterSubOp, T) \
  TF_TI_REGISTER_CPU("AdamUpdate", AdamUpdateOp, T)             \
  TF_TI_REGISTER_CPU("EmbeddingBagAdamUpdate", AdamUpdateOp, T) \
  TF_TI_REGISTER_CPU("AdagradUpdate", AdagradUpdateOp, T)       \
  TF_TI_REGISTER_CPU("EmbeddingBagAdagradUpdate", AdagradUpdateOp, T)
TF_CALL_half(TF_TI_REGISTER_UPDATES);
TF_CALL_bfloat16(TF_TI_REGISTER_UPDATES);
TF_CALL_float(TF_TI_REGISTER_UPDATES);
TF_CALL_double(TF_TI_REGISTER_UPDATES);

#if GOOGLE_CUDA
#define TF_TI_REGISTER_ON_GPU(builder, Op, T) \
  TF_TI_REGISTER_BOTH(tensorflow::DEVICE_GPU, KernelGpu, builder, Op, T)
// The op on rows, and that on bags; `.numbers` are the inputs that the host reads.
#define TF_TI_REGISTER_GPU_RULE(name, numbers, Op, T)      \
  TF_TI_REGISTER_ON_GPU(Name("TfTi>" name) numbers, Op, T) \
  TF_TI_REGISTER_ON_GPU(Name("TfTi>EmbeddingBag" name).HostMemory("default_index") numbers, Op, T)
#define TF_TI_ADAM_NUMBERS \
  .HostMemory("beta_1").HostMemory("beta_2").HostMemory("epsilon").HostMemory("weight_decay")
#define TF_TI_REGISTER_GPU(T)                                                \
  TF_TI_REGISTER_GPU_RULE("ScatterSub", , ScatterSubOp, T)                   \
  TF_TI_REGISTER_GPU_RULE("AdamUpdate", TF_TI_ADAM_NUMBERS, AdamUpdateOp, T) \
  TF_TI_REGISTER_GPU_RULE("AdagradUpdate", .HostMemory("epsilon"), AdagradUpdateOp, T)
TF_CALL_half(TF_TI_REGISTER_GPU);
TF_CALL_bfloat16(TF_TI_REGISTER_GPU);
TF_CALL_float(TF_TI_REGISTER_GPU);
TF_CALL_double(TF_TI_REGISTER_GPU);
#endif

}  // namespace
}  // namespace tf_ti
