// The instructions of programs: one operation on arrays each.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_INSTRUCTIONS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_INSTRUCTIONS_H_

#include <cstdint>

#include "cc/compute/program/view.h"

namespace tf_ti {

// The operations, by the names of TensorFlow's where it has them. Elementwise ones have as many
// operands as their group says; a result has its operands' type, or bool for a comparison and a
// test. ToHalf and ToBFloat16 round a float to the nearest number of half precision. AtLeast and
// AtMost are a Maximum and a Minimum of a number and a bound; a bound that is NaN is none.
//
// MACRO(name) for each.
// clang-format off
#define TF_TI_UNARY_OPERATIONS(MACRO)                                                           \
  MACRO(Neg) MACRO(Abs) MACRO(Sign) MACRO(Square) MACRO(Sqrt) MACRO(Rsqrt) MACRO(Reciprocal)    \
  MACRO(Exp) MACRO(Expm1) MACRO(Log) MACRO(Log1p) MACRO(Tanh) MACRO(Sigmoid) MACRO(Erf)         \
  MACRO(Floor) MACRO(Ceil) MACRO(Rint) MACRO(Relu) MACRO(ToHalf) MACRO(ToBFloat16)              \
  MACRO(IsNan) MACRO(IsInf) MACRO(IsFinite) MACRO(LogicalNot)
#define TF_TI_BINARY_OPERATIONS(MACRO)                                                          \
  MACRO(Add) MACRO(Sub) MACRO(Mul) MACRO(Div) MACRO(Maximum) MACRO(Minimum) MACRO(AtLeast)      \
  MACRO(AtMost) MACRO(SquaredDifference) MACRO(Equal) MACRO(NotEqual) MACRO(Less)               \
  MACRO(LessEqual) MACRO(Greater) MACRO(GreaterEqual) MACRO(LogicalAnd) MACRO(LogicalOr)        \
  MACRO(SigmoidGrad) MACRO(TanhGrad) MACRO(SqrtGrad) MACRO(RsqrtGrad) MACRO(ReciprocalGrad)     \
  MACRO(ReluGrad)
// One number after the other, most by functions of C's library: for few numbers. Integers divided
// by 0 give 0.
#define TF_TI_UNARY_CALLS(MACRO)                                                                \
  MACRO(Sin) MACRO(Cos) MACRO(Tan) MACRO(Asin) MACRO(Acos) MACRO(Atan) MACRO(Sinh) MACRO(Cosh)  \
  MACRO(Asinh) MACRO(Acosh) MACRO(Atanh) MACRO(Erfc)
#define TF_TI_BINARY_CALLS(MACRO)                                                               \
  MACRO(Pow) MACRO(Atan2) MACRO(TruncateDiv) MACRO(TruncateMod) MACRO(FloorDiv) MACRO(FloorMod)
// Along one dimension. ArgMax and ArgMin give int32 or int64.
#define TF_TI_REDUCTIONS(MACRO) \
  MACRO(Sum) MACRO(Prod) MACRO(Max) MACRO(Min) MACRO(ArgMax) MACRO(ArgMin) MACRO(All) MACRO(Any)
// clang-format on

enum class Operation : uint8_t {
#define TF_TI_NAME(name) k##name,
  kCopy,
  TF_TI_UNARY_OPERATIONS(TF_TI_NAME) TF_TI_UNARY_CALLS(TF_TI_NAME) kCast,
  TF_TI_BINARY_OPERATIONS(TF_TI_NAME) TF_TI_BINARY_CALLS(TF_TI_NAME)
      kSelect,  // of a bool and two others
  TF_TI_REDUCTIONS(TF_TI_NAME) kMatMul,
  kGather,
  kLoop  // of steps, within a program
#undef TF_TI_NAME
};

const char* NameOf(Operation operation);
int NumOperands(Operation operation);
inline bool IsReduction(Operation operation) {
  return operation >= Operation::kSum && operation < Operation::kMatMul;
}

// True if each element of a result depends on the operands' elements at the same place alone.
inline bool IsElementwise(Operation operation) { return operation < Operation::kSum; }

// One of many instructions of a processor.
inline bool IsFunction(Operation operation) {
  return operation >= Operation::kExp && operation <= Operation::kErf;
}

// True if a result may be no number of half precision, though the operands are.
bool MustRound(Operation operation);

inline bool IsCall(Operation operation) {
  return (operation >= Operation::kSin && operation < Operation::kCast) ||
         (operation >= Operation::kPow && operation < Operation::kSelect);
}

constexpr int kMostLoops = 4;

// An instruction as it runs: loops over elements, the innermost first. Operand 0 is the result,
// whose memory none of the others share: elements may be computed twice.
//
// An elementwise one has the same loops for all operands. A reduction has three: over the numbers
// that lie side by side, over those that are reduced, and over all others. A product of matrices
// has four: over its columns, over what is added up, over its rows, and over all others. A gather
// has three, over the numbers of a row, over indices, and over all others, and the number of rows
// among which it chooses.
//
// What one of a single row reads lies in one cache line.
struct alignas(64) Instruction {
  void (*run)(const Instruction& instruction);
  char* at[4];
  int64_t num_rows;                // all loops but the innermost, of an elementwise one
  int64_t sizes[kMostLoops];       // 1 for loops that it does not need
  int64_t strides[4][kMostLoops];  // in bytes
};

using Kernel = void (*)(const Instruction&);

// The kernel of an operation for operands of type `from` (of a Select, those after the bool), or
// null where there is none. In the innermost loop the elements of a result lie side by side, and
// so do those of operand k + 1, unless bit k of `layout` is set: then it is one number. There is a
// kernel for layout 0 if there is any; Copy has all, and one for any strides, kStrided.
//
// A reduction has layout 1 if the numbers that are reduced lie side by side; otherwise those of
// the innermost loop do, and are reduced each with those of other rows. A product of matrices has
// layout 1 if what is added up lies side by side in both factors; otherwise its columns do. A
// gather is `from` the type of its indices, and of each that is none of the rows' takes the
// nearest.
//
// With a `count` the kernel is for the one row of an elementwise operation that has so many
// elements.
constexpr int kStrided = 8;
Kernel FindKernel(Operation operation, ElementType from, ElementType to, int layout,
                  int64_t count = 0);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_INSTRUCTIONS_H_
