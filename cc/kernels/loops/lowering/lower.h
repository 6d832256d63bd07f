// Operations of bodies of loops as programs of vector code.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/compute/program/program.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

std::optional<ElementType> ElementTypeOf(tensorflow::DataType dtype);
tensorflow::DataType DataTypeOf(ElementType type);

// A value while operations are lowered: an array of the program, or one whose elements are known
// where the program is made, as axes and shapes are; or both.
struct Lowered {
  View view;
  std::optional<tensorflow::Tensor> known;
};
Dims DimsOf(const Lowered& value);

// True if an operation can be lowered, as far as its name and types tell.
bool MayBeLowered(const tensorflow::NodeDef& node);
// The names of these operations, with spaces between them: Python's passes ask for them.
extern "C" const char* TfTiLoweredOperations();
// Likewise, of the types that programs have.
extern "C" const char* TfTiLoweredTypes();
// The most elements that an array of a program has.
extern "C" int64_t TfTiMostElements();
// True if it only looks at an array in another way.
bool IsView(const tensorflow::NodeDef& node);

// Adds one operation to a program.
class Lowering {
 public:
  explicit Lowering(ProgramBuilder* builder) : builder_(builder) {}

  // Gets the outputs of an operation, or returns false where it cannot be lowered with these
  // inputs. Then nothing was added that anything reads, and no other operation can be lowered.
  bool Lower(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs,
             std::vector<Lowered>* outputs);

  // The value as an array of the program.
  std::optional<View> ViewOf(const Lowered& value);
  // A bool that is true where an operation has an error, if one may have any. All outputs are then
  // worth nothing.
  const std::optional<View>& failure() const { return failure_; }

 private:
  using Rule = bool (Lowering::*)(const tensorflow::NodeDef&, const std::vector<Lowered>&,
                                  std::vector<Lowered>*);
  static const std::unordered_map<std::string, Rule>& Rules();
  friend bool MayBeLowered(const tensorflow::NodeDef& node);
  friend const char* TfTiLoweredOperations();

#define TF_TI_RULE(name)                                                         \
  bool name(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs, \
            std::vector<Lowered>* outputs)
  TF_TI_RULE(Elementwise);
  TF_TI_RULE(Division);
  TF_TI_RULE(Composed);
  TF_TI_RULE(AddN);
  TF_TI_RULE(Cast);
  TF_TI_RULE(SelectV1);
  TF_TI_RULE(BiasAdd);
  TF_TI_RULE(BiasAddGrad);
  TF_TI_RULE(L2Loss);
  TF_TI_RULE(Reduction);
  TF_TI_RULE(Accumulated);
  TF_TI_RULE(IndexOfExtreme);
  TF_TI_RULE(ShapeOf);
  TF_TI_RULE(SizeOfAll);
  TF_TI_RULE(Range);
  TF_TI_RULE(ConcatOffset);
  TF_TI_RULE(InvertPermutation);
  TF_TI_RULE(IdentityN);
  TF_TI_RULE(Reshape);
  TF_TI_RULE(ExpandDims);
  TF_TI_RULE(Squeeze);
  TF_TI_RULE(Transpose);
  TF_TI_RULE(StridedSlice);
  TF_TI_RULE(StridedSliceGrad);
  TF_TI_RULE(Slice);
  TF_TI_RULE(BroadcastTo);
  TF_TI_RULE(Tile);
  TF_TI_RULE(Concat);
  TF_TI_RULE(Pack);
  TF_TI_RULE(Unpack);
  TF_TI_RULE(Split);
  TF_TI_RULE(SplitV);
  TF_TI_RULE(Gather);
  TF_TI_RULE(OneHot);
  TF_TI_RULE(MatMul);
  TF_TI_RULE(Einsum);
  TF_TI_RULE(Roll);
  TF_TI_RULE(Reverse);
  TF_TI_RULE(Pad);
  TF_TI_RULE(Softmax);
  TF_TI_RULE(SoftmaxCrossEntropy);
  TF_TI_RULE(Fill);
  TF_TI_RULE(ZerosLike);
  TF_TI_RULE(OnesLike);
  TF_TI_RULE(BroadcastGradientArgs);
#undef TF_TI_RULE

  // Gets what an operation makes of few known integers, if that is integers.
  static bool Evaluate(const tensorflow::NodeDef& node, Rule rule,
                       const std::vector<Lowered>& inputs, std::vector<Lowered>* outputs);
  bool OperandsOf(const std::vector<Lowered>& inputs, std::vector<View>* operands, Dims* dims);
  // The sum over some dimensions, which stay as ones of 1. They have elements. Of any reduction.
  // Half precision sums in float.
  View Reduced(Operation operation, View view, const std::vector<bool>& is_reduced);
  // Neighbouring dimensions as one.
  View Merged(const View& view, int first, int count);
  bool Joined(const std::vector<View>& parts, int dim, std::vector<Lowered>* outputs);
  bool Chosen(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs, int dim,
              std::vector<Lowered>* outputs);
  bool Filled(const View& element, const Dims& dims, std::vector<Lowered>* outputs);
  bool Sliced(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs, int first,
              View view, View* result);

  // Adds to what is a failure.
  bool FailsWhere(const View& bools);

  ProgramBuilder* const builder_;
  std::optional<View> failure_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_
