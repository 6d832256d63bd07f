#include "cc/compute/program/instructions.h"

#include "cc/compute/program/calls.h"
#include "cc/compute/program/kernels_of.h"

namespace tf_ti {

const char* NameOf(Operation operation) {
  switch (operation) {
#define TF_TI_CASE(name)   \
  case Operation::k##name: \
    return #name;
    TF_TI_CASE(Copy)
    TF_TI_UNARY_OPERATIONS(TF_TI_CASE)
    TF_TI_UNARY_CALLS(TF_TI_CASE)
    TF_TI_CASE(Cast)
    TF_TI_BINARY_OPERATIONS(TF_TI_CASE)
    TF_TI_BINARY_CALLS(TF_TI_CASE)
    TF_TI_CASE(Select)
    TF_TI_REDUCTIONS(TF_TI_CASE)
    TF_TI_CASE(MatMul)
    TF_TI_CASE(Gather)
    TF_TI_CASE(Loop)
#undef TF_TI_CASE
  }
  return "";
}

int NumOperands(Operation operation) {
  if (operation <= Operation::kCast || IsReduction(operation)) return 1;
  return operation == Operation::kSelect ? 3 : 2;
}

bool MustRound(Operation operation) {
  switch (operation) {
    case Operation::kCopy:
    case Operation::kNeg:
    case Operation::kAbs:
    case Operation::kSign:
    case Operation::kFloor:
    case Operation::kCeil:
    case Operation::kRint:
    case Operation::kRelu:
    case Operation::kToHalf:
    case Operation::kToBFloat16:
    case Operation::kIsNan:
    case Operation::kIsInf:
    case Operation::kIsFinite:
    case Operation::kLogicalNot:
    case Operation::kMaximum:
    case Operation::kMinimum:
    case Operation::kAtLeast:
    case Operation::kAtMost:
    case Operation::kEqual:
    case Operation::kNotEqual:
    case Operation::kLess:
    case Operation::kLessEqual:
    case Operation::kGreater:
    case Operation::kGreaterEqual:
    case Operation::kLogicalAnd:
    case Operation::kLogicalOr:
    case Operation::kReluGrad:
    case Operation::kSelect:
    case Operation::kMax:
    case Operation::kMin:
    case Operation::kArgMax:
    case Operation::kArgMin:
    case Operation::kAll:
    case Operation::kAny:
    case Operation::kGather:
      return false;
    default:
      return true;
  }
}

namespace {

bool IsExtreme(Operation operation) {
  return operation == Operation::kMax || operation == Operation::kMin ||
         operation == Operation::kArgMax || operation == Operation::kArgMin;
}

}  // namespace

Kernel FindKernel(Operation operation, ElementType from, ElementType to, int layout,
                  int64_t count) {
  const bool rounds = operation == Operation::kToHalf || operation == Operation::kToBFloat16;
  if (rounds && IsHalf(from)) return nullptr;
  if (IsHalf(from) && IsExtreme(operation)) {
    return from == ElementType::kHalf ? ExtremeKernelOfHalves(operation, to, layout)
                                      : ExtremeKernelOfBFloat16s(operation, to, layout);
  }
  from = ComputedAs(from);
  to = ComputedAs(to);
  if (IsCall(operation)) return FindCall(operation, from);
  switch (from) {
    case ElementType::kFloat:
      return KernelOfFloats(operation, to, layout, count);
    case ElementType::kDouble:
      return KernelOfDoubles(operation, to, layout, count);
    case ElementType::kInt32:
      return KernelOfInt32s(operation, to, layout, count);
    case ElementType::kInt64:
      return KernelOfInt64s(operation, to, layout, count);
    case ElementType::kBool:
      return KernelOfBools(operation, to, layout, count);
    case ElementType::kHalfBits:
      return operation == Operation::kCast ? WideningKernelOfHalves(layout, count) : nullptr;
    case ElementType::kBFloat16Bits:
      return operation == Operation::kCast ? WideningKernelOfBFloat16s(layout, count) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace tf_ti
