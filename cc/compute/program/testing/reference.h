// What instructions mean, element by element, in plain C++.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_TESTING_REFERENCE_H_
#define TF_TI_CC_COMPUTE_PROGRAM_TESTING_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "cc/compute/program/instructions.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

// An array, with the elements of every type in the widest of its kind.
struct Array {
  ElementType type = ElementType::kFloat;
  Dims dims;
  std::vector<double> reals;      // of floats and doubles
  std::vector<int64_t> integers;  // of the others

  bool is_real() const { return IsReal(type); }
};

// The bits that numbers of half precision have behind the first, and the exponent of the smallest
// that has all of them.
inline int FractionOf(ElementType type) { return type == ElementType::kHalf ? 10 : 7; }
inline int LeastExponentOf(ElementType type) { return type == ElementType::kHalf ? -14 : -126; }

// The largest finite number.
inline double LargestOf(ElementType type) {
  if (IsHalf(type)) {
    return std::ldexp(2 - std::ldexp(1, -FractionOf(type)), type == ElementType::kHalf ? 15 : 127);
  }
  return type == ElementType::kFloat ? std::numeric_limits<float>::max()
                                     : std::numeric_limits<double>::max();
}

// A number as the type has it. To half precision it is rounded from a float.
inline double RoundTo(ElementType type, long double x) {
  if (IsHalf(type)) {
    const double wide = static_cast<float>(x);
    if (wide == 0 || !std::isfinite(wide)) return wide;
    const int exponent = std::max(std::ilogb(wide), LeastExponentOf(type));
    const double step = std::ldexp(1, exponent - FractionOf(type));
    const double rounded = std::nearbyint(wide / step) * step;
    const double end = type == ElementType::kHalf ? 0x1p16 : 0x1p128;
    return std::fabs(rounded) < end ? rounded : std::copysign(INFINITY, wide);
  }
  return type == ElementType::kFloat ? static_cast<float>(x) : static_cast<double>(x);
}
inline int64_t WrapTo(ElementType type, int64_t x) {
  return type == ElementType::kInt32 ? static_cast<int32_t>(x) : x;
}

// The operation on doubles that hold numbers of a type. Sums, products, quotients and roots of
// floats are right in double, too, once they are rounded. Half precision is computed in float, and
// rounded at the end.
inline double RealResult(Operation operation, ElementType type, double x, double y) {
  if (IsHalf(type)) return RoundTo(type, RealResult(operation, ElementType::kFloat, x, y));
  const auto r = [type](long double value) { return RoundTo(type, value); };
  switch (operation) {
    case Operation::kCopy:
      return x;
    case Operation::kNeg:
      return -x;
    case Operation::kAbs:
      return std::fabs(x);
    case Operation::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;
    case Operation::kSquare:
      return r(x * x);
    case Operation::kSqrt:
      return r(std::sqrt(x));
    case Operation::kRsqrt:
      return r(1 / r(std::sqrt(x)));
    case Operation::kReciprocal:
      return r(1 / x);
    case Operation::kExp:
      return r(std::exp(static_cast<long double>(x)));
    case Operation::kExpm1:
      return r(std::expm1(static_cast<long double>(x)));
    case Operation::kLog:
      return r(std::log(static_cast<long double>(x)));
    case Operation::kLog1p:
      return r(std::log1p(static_cast<long double>(x)));
    case Operation::kTanh:
      return r(std::tanh(static_cast<long double>(x)));
    case Operation::kSigmoid:
      return r(1 / (1 + std::exp(-static_cast<long double>(x))));
    case Operation::kErf:
      return r(std::erf(static_cast<long double>(x)));
    case Operation::kSin:
      return r(std::sin(static_cast<long double>(x)));
    case Operation::kCos:
      return r(std::cos(static_cast<long double>(x)));
    case Operation::kTan:
      return r(std::tan(static_cast<long double>(x)));
    case Operation::kAsin:
      return r(std::asin(static_cast<long double>(x)));
    case Operation::kAcos:
      return r(std::acos(static_cast<long double>(x)));
    case Operation::kAtan:
      return r(std::atan(static_cast<long double>(x)));
    case Operation::kSinh:
      return r(std::sinh(static_cast<long double>(x)));
    case Operation::kCosh:
      return r(std::cosh(static_cast<long double>(x)));
    case Operation::kAsinh:
      return r(std::asinh(static_cast<long double>(x)));
    case Operation::kAcosh:
      return r(std::acosh(static_cast<long double>(x)));
    case Operation::kAtanh:
      return r(std::atanh(static_cast<long double>(x)));
    case Operation::kErfc:
      return r(std::erfc(static_cast<long double>(x)));
    case Operation::kFloor:
      return std::floor(x);
    case Operation::kCeil:
      return std::ceil(x);
    case Operation::kRint:
      return std::nearbyint(x);
    case Operation::kRelu:
      return x <= 0 ? 0 : x;
    case Operation::kToHalf:
      return RoundTo(ElementType::kHalf, x);
    case Operation::kToBFloat16:
      return RoundTo(ElementType::kBFloat16, x);
    case Operation::kAdd:
      return r(x + y);
    case Operation::kSub:
      return r(x - y);
    case Operation::kMul:
      return r(x * y);
    case Operation::kDiv:
      return r(x / y);
    case Operation::kMaximum:
      return x != x ? x : y != y ? y : x > y ? x : y;
    case Operation::kMinimum:
      return x != x ? x : y != y ? y : x < y ? x : y;
    case Operation::kAtLeast:
      return x < y ? y : x;
    case Operation::kAtMost:
      return x > y ? y : x;
    case Operation::kSquaredDifference:
      return r(r(x - y) * r(x - y));
    case Operation::kPow:
      return r(std::pow(static_cast<long double>(x), static_cast<long double>(y)));
    case Operation::kAtan2:
      return r(std::atan2(static_cast<long double>(x), static_cast<long double>(y)));
    case Operation::kTruncateDiv:
      return std::trunc(r(x / y));
    case Operation::kTruncateMod:
      return std::fmod(x, y);
    case Operation::kFloorDiv:
      return std::floor(r(x / y));
    case Operation::kFloorMod: {
      const double rest = std::fmod(x, y);
      return rest != 0 && (rest < 0) != (y < 0) ? r(rest + y) : rest;
    }
    case Operation::kSigmoidGrad:
      return r(y * r(x * r(1 - x)));
    case Operation::kTanhGrad:
      return r(y * r(1 - r(x * x)));
    case Operation::kSqrtGrad:
      return y == 0 ? 0 : r(r(0.5 / x) * y);
    case Operation::kRsqrtGrad: {
      const double z = y == 0 ? 0 : r(x * y);
      return z == 0 ? 0 : r(r(-0.5 * r(x * x)) * z);
    }
    case Operation::kReciprocalGrad:
      return y == 0 ? 0 : r(-r(x * x) * y);
    case Operation::kReluGrad:
      return x * (y > 0);
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

inline int64_t IntegerResult(Operation operation, ElementType type, int64_t x, int64_t y) {
  using U = uint64_t;
  const auto w = [type](U value) { return WrapTo(type, static_cast<int64_t>(value)); };
  switch (operation) {
    case Operation::kNeg:
      return w(-U(x));
    case Operation::kAbs:
      return x < 0 ? w(-U(x)) : x;
    case Operation::kSign:
      return (x > 0) - (x < 0);
    case Operation::kSquare:
      return w(U(x) * U(x));
    case Operation::kRelu:
      return x < 0 ? 0 : x;
    case Operation::kLogicalNot:
      return !x;
    case Operation::kAdd:
      return w(U(x) + U(y));
    case Operation::kSub:
      return w(U(x) - U(y));
    case Operation::kMul:
      return w(U(x) * U(y));
    case Operation::kMaximum:
    case Operation::kAtLeast:
      return x > y ? x : y;
    case Operation::kMinimum:
    case Operation::kAtMost:
      return x < y ? x : y;
    case Operation::kSquaredDifference:
      return w(U(WrapTo(type, static_cast<int64_t>(U(x) - U(y)))) *
               U(WrapTo(type, static_cast<int64_t>(U(x) - U(y)))));
    case Operation::kLogicalAnd:
      return x && y;
    case Operation::kLogicalOr:
      return x || y;
    case Operation::kReluGrad:
      return y > 0 ? x : 0;
    case Operation::kTruncateDiv:
      return y == 0 ? 0 : y == -1 ? w(-U(x)) : x / y;
    case Operation::kTruncateMod:
      return y == 0 || y == -1 ? 0 : x % y;
    case Operation::kFloorDiv:
      return y == 0 ? 0 : y == -1 ? w(-U(x)) : x / y - (x % y != 0 && (x < 0) != (y < 0));
    case Operation::kFloorMod:
      return y == 0 || y == -1 ? 0 : x % y + ((x % y != 0 && (x < 0) != (y < 0)) ? y : 0);
    default:
      return x;  // kCopy
  }
}

template <typename T>
bool TestResult(Operation operation, T x, T y) {
  switch (operation) {
    case Operation::kEqual:
      return x == y;
    case Operation::kNotEqual:
      return x != y;
    case Operation::kLess:
      return x < y;
    case Operation::kLessEqual:
      return x <= y;
    case Operation::kGreater:
      return x > y;
    case Operation::kGreaterEqual:
      return x >= y;
    case Operation::kIsNan:
      return x != x;
    case Operation::kIsInf:
      return std::isinf(static_cast<double>(x));
    default:
      return std::isfinite(static_cast<double>(x));
  }
}

// The position of an element of `dims` in an array that is broadcast to them.
inline int64_t BroadcastPosition(const Array& array, const Dims& dims, int64_t element) {
  int64_t position = 0, stride = 1;
  for (int d = static_cast<int>(dims.size()) - 1, a = static_cast<int>(array.dims.size()) - 1;
       a >= 0; --d, --a) {
    const int64_t index = element % dims[d];
    element /= dims[d];
    if (array.dims[a] != 1) position += index * stride;
    stride *= array.dims[a];
  }
  return position;
}

inline bool IsComparison(Operation operation) {
  return operation >= Operation::kEqual && operation <= Operation::kGreaterEqual;
}
inline bool IsProperty(Operation operation) {
  return operation >= Operation::kIsNan && operation <= Operation::kIsFinite;
}

inline Array ApplyPlainly(Operation operation, const std::vector<Array>& operands) {
  Array result;
  result.dims = operands[0].dims;
  for (const Array& operand : operands) result.dims = *BroadcastDims(result.dims, operand.dims);
  const Array& last = operands.back();
  const bool is_test = IsComparison(operation) || IsProperty(operation);
  result.type = is_test ? ElementType::kBool : last.type;
  for (int64_t i = 0; i < CountOf(result.dims); ++i) {
    int64_t at[3] = {};
    for (size_t k = 0; k < operands.size(); ++k) {
      at[k] = BroadcastPosition(operands[k], result.dims, i);
    }
    if (operation == Operation::kSelect) {
      const int k = operands[0].integers[at[0]] ? 1 : 2;
      if (last.is_real()) {
        result.reals.push_back(operands[k].reals[at[k]]);
      } else {
        result.integers.push_back(operands[k].integers[at[k]]);
      }
    } else if (last.is_real()) {
      const double x = operands[0].reals[at[0]];
      const double y = operands.size() > 1 ? operands[1].reals[at[1]] : 0;
      if (is_test) {
        result.integers.push_back(TestResult(operation, x, y));
      } else {
        result.reals.push_back(RealResult(operation, last.type, x, y));
      }
    } else {
      const int64_t x = operands[0].integers[at[0]];
      const int64_t y = operands.size() > 1 ? operands[1].integers[at[1]] : 0;
      result.integers.push_back(is_test ? TestResult(operation, x, y)
                                        : IntegerResult(operation, last.type, x, y));
    }
  }
  return result;
}

inline Array CastPlainly(const Array& array, ElementType to) {
  Array result;
  result.type = to;
  result.dims = array.dims;
  const bool is_real = IsReal(to);
  for (int64_t i = 0; i < CountOf(array.dims); ++i) {
    if (array.is_real()) {
      const double x = array.reals[i];
      const double bound = to == ElementType::kInt32 ? 2147483648.0 : 9223372036854775808.0;
      if (is_real) {
        result.reals.push_back(RoundTo(to, x));
      } else if (to == ElementType::kBool) {
        result.integers.push_back(x != 0);
      } else {
        result.integers.push_back(x >= -bound && x < bound ? static_cast<int64_t>(x)
                                  : to == ElementType::kInt32
                                      ? std::numeric_limits<int32_t>::min()
                                      : std::numeric_limits<int64_t>::min());
      }
    } else {
      const int64_t x = array.integers[i];
      if (is_real) {
        result.reals.push_back(RoundTo(to, static_cast<long double>(x)));
      } else {
        result.integers.push_back(to == ElementType::kBool ? x != 0 : WrapTo(to, x));
      }
    }
  }
  return result;
}

// `magnitudes` gets the sums of the numbers' magnitudes, which bound the errors of sums. An index
// of an extreme counts only numbers beyond the farthest finite number, and is 0 without any.
inline Array ReducePlainly(Operation operation, const Array& array, int dim, ElementType to,
                           std::vector<double>* magnitudes) {
  Array result;
  result.type = to;
  result.dims = array.dims;
  result.dims[dim] = 1;
  int64_t inner = 1;
  for (size_t d = dim + 1; d < array.dims.size(); ++d) inner *= array.dims[d];
  const int64_t size = array.dims[dim], count = CountOf(result.dims);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = i / inner * size * inner + i % inner;
    long double real = 0, magnitude = 0;
    int64_t integer = 0, place = 0;
    const bool is_product = operation == Operation::kProd;
    const bool is_max = operation == Operation::kMax || operation == Operation::kArgMax;
    const bool is_sum = operation == Operation::kSum;
    const bool is_all = operation == Operation::kAll, is_any = operation == Operation::kAny;
    if (is_product) real = integer = 1;
    if (is_all) integer = 1;
    const bool is_index = operation == Operation::kArgMax || operation == Operation::kArgMin;
    if (!is_product && !is_sum && array.is_real()) real = array.reals[first];
    if (is_index && array.is_real()) real = is_max ? -LargestOf(array.type) : LargestOf(array.type);
    if (!is_product && !is_sum && !is_all && !is_any && !array.is_real()) {
      integer = array.integers[first];
    }
    for (int64_t r = 0; r < size; ++r) {
      const int64_t at = first + r * inner;
      if (array.is_real()) {
        const double x = array.reals[at];
        magnitude += std::fabs(x);
        if (is_sum) {
          real += x;
        } else if (is_product) {
          real *= x;
        } else {
          const bool is_better = is_max ? x > real : x < real;
          if (is_better) place = r;
          if (is_better || (!is_index && x != x)) real = x;
        }
      } else {
        const int64_t x = array.integers[at];
        if (is_sum) {
          integer = static_cast<int64_t>(static_cast<uint64_t>(integer) + static_cast<uint64_t>(x));
        } else if (is_product) {
          integer = static_cast<int64_t>(static_cast<uint64_t>(integer) * static_cast<uint64_t>(x));
        } else if (is_all) {
          integer = integer && x;
        } else if (is_any) {
          integer = integer || x;
        } else if (is_max ? x > integer : x < integer) {
          integer = x;
          place = r;
        }
      }
    }
    if (magnitudes != nullptr) magnitudes->push_back(static_cast<double>(magnitude));
    if (is_index) {
      result.integers.push_back(place);
    } else if (array.is_real()) {
      result.reals.push_back(RoundTo(to, real));
    } else {
      result.integers.push_back(WrapTo(to, integer));
    }
  }
  return result;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_TESTING_REFERENCE_H_
