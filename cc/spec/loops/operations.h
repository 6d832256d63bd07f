// What TensorFlow's operations are, for programs of loops and for passes over loops.
#ifndef TF_TI_CC_SPEC_LOOPS_OPERATIONS_H_
#define TF_TI_CC_SPEC_LOOPS_OPERATIONS_H_

#include <optional>
#include <string>

namespace tf_ti {

enum class OperationKind {
  kPassing,          // the values as they are
  kView,             // an array's elements in another order, some of them, or again and again
  kShape,            // extents of arrays
  kShapeArithmetic,  // what is computed of extents and axes
  kFilled,           // one number everywhere
  kElementwise,      // each element of the elements there
  kReduction,        // one element of those along axes
  kAccumulation,     // sums and products along an axis, of more and more elements
  kSoftmax,          // softmax along the last axis, and what is computed with it
  kSorting,          // elements in the order of their values, along the last axis
  kMovement,         // elements of several arrays, or elsewhere
  kDiagonal,         // diagonals of matrices, which are the last two axes
  kProduct,          // products of matrices
  kFilter,           // convolutions
  kDecomposition,    // of matrices, which are the last two axes
  kSolver,           // solutions of systems of equations
  kTransform,        // Fourier transforms
  kPooling,          // the means and maxima of windows
  kResizing,         // images of other extents
  kColor,            // images of other colors
  kRandom,           // random numbers
};

// The kind of an operation, if there is a row for it in operations.inc.
std::optional<OperationKind> KindOf(const std::string& operation);

// True if a row says that the inputs of an operation are not broadcast.
bool HasOwnShapes(const std::string& operation);

// A line for each row of operations.inc, with | between its columns: Python's passes read them.
extern "C" const char* TfTiOperations();

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_LOOPS_OPERATIONS_H_
