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
#include "cc/kernels/kernel.h"
#include "cc/kernels/threads.h"
#include "cc/spec/bags/update_spec.h"

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
    std::vector<Var*> order;
    for (const auto& variable : variables_) order.push_back(variable.get());
    std::sort(order.begin(), order.end(), std::less<Var*>());
    locked_.reserve(order.size());
    for (Var* variable : order) {
      variable->mu()->lock();
      locked_.push_back(variable);
    }
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

// The basics of these ops: a variable with its slots, and rows with their gradients, or bags of
// rows with the gradients of a look-up's output.
template <typename T, typename Index, typename Device>
class UpdateOp : public SafeKernel {
 public:
  UpdateOp(OpKernelConstruction* ctx, UpdateRule rule) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), rule));
    names_.insert(names_.end(), spec_.slots.begin(), spec_.slots.end());
  }

 protected:
  using E = Element<T>;
  using S = Sum<E>;

  const UpdateSpec& spec() const { return spec_; }
  const Tensor& number(OpKernelContext* ctx, int i) const {
    return ctx->input(spec_.first_number + i);
  }

  // Slots may have one element for each row.
  static Slot<S> GetSlot(const LockedVariables& variables, int i) {
    Tensor* const tensor = variables.tensor(i);
    return {Elements<S>(tensor), tensor->shape() != variables.tensor(0)->shape()};
  }

  // Checks the values of the numbers that lie on the host.
  virtual absl::Status CheckNumbers(OpKernelContext*) const { return absl::OkStatus(); }
  virtual std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                             const RowGradientsOf<E, Index>& gradients, Device* device) const = 0;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(ctx, names_));
    TF_RETURN_IF_ERROR(CheckVariables(variables));
    const Tensor& table = *variables.tensor(0);
    TF_RETURN_IF_ERROR(spec_.CheckGradients(InputShapes(ctx), table.shape()));
    RowGradientsOf<E, Index> gradients;
    if (spec_.bags.has_value()) {
      TF_RETURN_IF_ERROR(GetBags(ctx, &gradients));
    } else {
      GetRows(ctx, table, &gradients);
    }
    gradients.num_rows = table.dim_size(0);
    gradients.width = Width(table);
    for (int i = 0; i < spec_.num_numbers(); ++i) {
      const Tensor& number = this->number(ctx, i);
      TF_RETURN_IF_ERROR(spec_.CheckNumber(i, number.shape(), number.dtype()));
    }
    TF_RETURN_IF_ERROR(CheckNumbers(ctx));
    TF_RETURN_IF_ERROR(variables.MakeUnshared(ctx));
    Device device(ctx);
    TF_RETURN_IF_ERROR(gradients.are_rows
                           ? CheckRows(ctx, gradients.bags, gradients.num_rows, &device)
                           : CheckValues(ctx, gradients.bags, gradients.num_rows, &device));
    return ToStatus(Update(ctx, variables, gradients, &device), &device);
  }

  absl::Status CheckVariables(const LockedVariables& variables) const {
    const char* const others = spec_.bags.has_value() ? "gradients" : "values";
    TF_RETURN_IF_ERROR(CheckType(variables, 0, DataTypeToEnum<T>::value, others));
    const TensorShape& shape = variables.tensor(0)->shape();
    TF_RETURN_IF_ERROR(spec_.CheckVariable(shape));
    for (int i = 0; i < spec_.num_slots(); ++i) {
      bool ignored;
      TF_RETURN_IF_ERROR(CheckType(variables, 1 + i, spec_.sum_dtype, "sums of values"));
      TF_RETURN_IF_ERROR(spec_.CheckSlot(i, variables.tensor(1 + i)->shape(), shape, &ignored));
    }
    return absl::OkStatus();
  }

  void GetRows(OpKernelContext* ctx, const Tensor& table,
               RowGradientsOf<E, Index>* gradients) const {
    const Tensor& indices = ctx->input(spec_.gradients());
    const Tensor& values = ctx->input(spec_.gradients() + 1);
    *gradients = GradientsOfRows(Elements<Index>(indices), Elements<E>(values),
                                 indices.NumElements(), table.dim_size(0), Width(table));
    gradients->are_distinct = spec_.are_distinct;
  }

  absl::Status GetBags(OpKernelContext* ctx, RowGradientsOf<E, Index>* gradients) const {
    BagGradients<E, Index> given;
    TF_RETURN_IF_ERROR(given.GetChecked(ctx, *spec_.bags));
    gradients->bags = given.bags;
    gradients->weights = given.weights;
    gradients->reduction = spec_.bags->reduction;
    gradients->argmax = given.argmax;
    gradients->grad = Elements<E>(*given.grad);
    return absl::OkStatus();
  }

  static int64_t Width(const Tensor& table) {
    return table.dim_size(0) == 0 ? 0 : table.NumElements() / table.dim_size(0);
  }

  UpdateSpec spec_;
  std::vector<std::string> names_ = {"the variable"};
};

template <typename T, typename Index, typename Device>
class ScatterSubOp : public UpdateOp<T, Index, Device> {
 public:
  explicit ScatterSubOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, UpdateRule::kDescent) {}

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;
  using Gradients = RowGradientsOf<E, Index>;

  static constexpr bool kHasDecay =
      std::is_floating_point_v<Sum<Element<T>>> && !IsComplex<Element<T>>::value;

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const Gradients& gradients, Device* device) const override {
    return Update(ctx, gradients, device, Elements<E>(variables.tensor(0)));
  }

  std::string Update(OpKernelContext* ctx, const Gradients& gradients, Threads* threads,
                     E* table) const {
    const S scale = Number(this->scale(ctx));
    if constexpr (kHasDecay) {
      if (this->spec().has_decay || !gradients.are_rows) {
        const double decay = this->spec().has_decay ? Number(weight_decay(ctx)) : S(0);
        return DecayedScatterSub(gradients, scale, decay, threads, table);
      }
    }
    return ScatterSub(gradients, scale, threads, table);
  }

#if GOOGLE_CUDA
  std::string Update(OpKernelContext* ctx, const Gradients& gradients, KernelGpu* gpu,
                     E* table) const {
    if (this->spec().has_decay) {
      return DecayedScatterSub(gradients, Elements<S>(scale(ctx)), Elements<S>(weight_decay(ctx)),
                               gpu, table);
    }
    return ScatterSub(gradients, Elements<S>(scale(ctx)), gpu, table);
  }
#endif

  const Tensor& scale(OpKernelContext* ctx) const { return this->number(ctx, 0); }
  const Tensor& weight_decay(OpKernelContext* ctx) const { return this->number(ctx, 1); }
  // Integers add up in more bits than the scale has.
  static S Number(const Tensor& tensor) {
    if constexpr (std::is_same_v<T, E>) {
      return tensor.scalar<T>()();
    } else {
      return tensor.scalar<float>()();
    }
  }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An error where a number on the host lies outside of [least, end).
absl::Status CheckIn(const char* name, const Tensor& number, double least, double end) {
  const double value = number.scalar<double>()();
  if (value >= least && value < end) return absl::OkStatus();
  return InvalidArgument(name, " must be at least ", least,
                         end < kInfinity ? absl::StrCat(" and below ", end) : " and finite",
                         ", got ", value);
}

template <typename T, typename Index, typename Device>
class AdamUpdateOp : public UpdateOp<T, Index, Device> {
 public:
  explicit AdamUpdateOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, UpdateRule::kAdam) {}

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;

  absl::Status CheckNumbers(OpKernelContext* ctx) const override {
    if constexpr (std::is_same_v<Device, Threads>) {
      const int64_t step = this->number(ctx, 1).template scalar<int64_t>()();
      if (step < 1) return InvalidArgument("step must be at least 1, got ", step);
    }
    TF_RETURN_IF_ERROR(CheckIn("beta_1", this->number(ctx, 2), 0, 1));
    TF_RETURN_IF_ERROR(CheckIn("beta_2", this->number(ctx, 3), 0, 1));
    TF_RETURN_IF_ERROR(CheckIn("epsilon", this->number(ctx, 4), 0, kInfinity));
    return CheckIn("weight_decay", this->number(ctx, 5), 0, kInfinity);
  }

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const RowGradientsOf<E, Index>& gradients, Device* device) const override {
    const auto number = [&](int i) { return this->number(ctx, i).template scalar<double>()(); };
    AdamNumbers numbers;
    numbers.beta_1 = number(2);
    numbers.beta_2 = number(3);
    numbers.epsilon = number(4);
    numbers.weight_decay = number(5);
    numbers.epsilon_hat = this->spec().flag;
    S* const m = Elements<S>(variables.tensor(1));
    const Slot<S> v = Base::GetSlot(variables, 2);
    E* const table = Elements<E>(variables.tensor(0));
    const Tensor &learning_rate = this->number(ctx, 0), &step = this->number(ctx, 1);
    if constexpr (std::is_same_v<Device, Threads>) {
      numbers.learning_rate = learning_rate.scalar<S>()();
      numbers.step = step.scalar<int64_t>()();
      return AdamUpdate(gradients, numbers, m, v, device, table);
    } else {
      return AdamUpdate(gradients, numbers, Elements<S>(learning_rate), Elements<int64_t>(step), m,
                        v, device, table);
    }
  }
};

template <typename T, typename Index, typename Device>
class AdagradUpdateOp : public UpdateOp<T, Index, Device> {
 public:
  explicit AdagradUpdateOp(OpKernelConstruction* ctx)
      : UpdateOp<T, Index, Device>(ctx, UpdateRule::kAdagrad) {}

 private:
  using Base = UpdateOp<T, Index, Device>;
  using E = typename Base::E;
  using S = typename Base::S;

  absl::Status CheckNumbers(OpKernelContext* ctx) const override {
    return CheckIn("epsilon", this->number(ctx, 1), 0, kInfinity);
  }

  std::string Update(OpKernelContext* ctx, const LockedVariables& variables,
                     const RowGradientsOf<E, Index>& gradients, Device* device) const override {
    AdagradNumbers numbers;
    numbers.epsilon = this->number(ctx, 1).template scalar<double>()();
    numbers.epsilon_inside_sqrt = this->spec().flag;
    const Slot<S> accumulator = Base::GetSlot(variables, 1);
    E* const table = Elements<E>(variables.tensor(0));
    const Tensor& learning_rate = this->number(ctx, 0);
    if constexpr (std::is_same_v<Device, Threads>) {
      numbers.learning_rate = learning_rate.scalar<S>()();
      return AdagradUpdate(gradients, numbers, accumulator, device, table);
    } else {
      return AdagradUpdate(gradients, numbers, Elements<S>(learning_rate), accumulator, device,
                           table);
    }
  }
};

#define TF_TI_REGISTER_INDEX(device, computer, definition, Op, T, Index)                  \
  TF_TI_REGISTER_KERNEL(                                                                  \
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
#define TF_TI_REFUSE_ON_GPU(T) TF_TI_REFUSE_VARIABLE("TfTi>ScatterSub", T);
TF_CALL_INTEGRAL_TYPES(TF_TI_REFUSE_ON_GPU);
TF_CALL_COMPLEX_TYPES(TF_TI_REFUSE_ON_GPU);
TF_CALL_half(TF_TI_REGISTER_GPU);
TF_CALL_bfloat16(TF_TI_REGISTER_GPU);
TF_CALL_float(TF_TI_REGISTER_GPU);
TF_CALL_double(TF_TI_REGISTER_GPU);
#endif

}  // namespace
}  // namespace tf_ti
