#include "cc/compute/program/calls.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace tf_ti {
namespace {

#define TF_TI_REAL_CALL(name, ...)                                  \
  struct name {                                                     \
    template <typename T>                                           \
    static constexpr bool kHas = std::is_floating_point_v<T>;       \
    template <typename T>                                           \
    static T Of([[maybe_unused]] T x, [[maybe_unused]] T y = T()) { \
      return __VA_ARGS__;                                           \
    }                                                               \
  };
TF_TI_REAL_CALL(Sin, std::sin(x))
TF_TI_REAL_CALL(Cos, std::cos(x))
TF_TI_REAL_CALL(Tan, std::tan(x))
TF_TI_REAL_CALL(Asin, std::asin(x))
TF_TI_REAL_CALL(Acos, std::acos(x))
TF_TI_REAL_CALL(Atan, std::atan(x))
TF_TI_REAL_CALL(Sinh, std::sinh(x))
TF_TI_REAL_CALL(Cosh, std::cosh(x))
TF_TI_REAL_CALL(Asinh, std::asinh(x))
TF_TI_REAL_CALL(Acosh, std::acosh(x))
TF_TI_REAL_CALL(Atanh, std::atanh(x))
TF_TI_REAL_CALL(Erfc, std::erfc(x))
TF_TI_REAL_CALL(Pow, std::pow(x, y))
TF_TI_REAL_CALL(Atan2, std::atan2(x, y))
#undef TF_TI_REAL_CALL

// Integers wrap around, as the lowest one's quotient by -1 does.
struct TruncateDiv {
  template <typename T>
  static constexpr bool kHas = true;
  template <typename T>
  static T Of(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::trunc(x / y);
    } else {
      if (y == 0) return 0;
      return y == -1 ? static_cast<T>(-static_cast<std::make_unsigned_t<T>>(x)) : x / y;
    }
  }
};

struct TruncateMod {
  template <typename T>
  static constexpr bool kHas = true;
  template <typename T>
  static T Of(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(x, y);
    } else {
      return y == 0 || y == -1 ? 0 : x % y;
    }
  }
};

struct FloorDiv {
  template <typename T>
  static constexpr bool kHas = true;
  template <typename T>
  static T Of(T x, T y) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::floor(x / y);
    } else {
      const T quotient = TruncateDiv::Of(x, y);
      return TruncateMod::Of(x, y) != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
    }
  }
};

struct FloorMod {
  template <typename T>
  static constexpr bool kHas = true;
  template <typename T>
  static T Of(T x, T y) {
    const T rest = TruncateMod::Of(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
  }
};

template <typename T>
T At(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Calls of(pointers) for the elements.
template <typename Of>
void ForElements(const Instruction& o, const Of& of) {
  for (int64_t l = 0; l < o.sizes[3]; ++l) {
    for (int64_t k = 0; k < o.sizes[2]; ++k) {
      for (int64_t j = 0; j < o.sizes[1]; ++j) {
        char* at[3];
        for (int p = 0; p < 3; ++p) {
          at[p] = o.at[p] + j * o.strides[p][1] + k * o.strides[p][2] + l * o.strides[p][3];
        }
        for (int64_t i = 0; i < o.sizes[0]; ++i) {
          of(at);
          for (int p = 0; p < 3; ++p) at[p] += o.strides[p][0];
        }
      }
    }
  }
}

template <typename F, typename T>
void CallUnary(const Instruction& o) {
  ForElements(o, [](char* const* at) {
    const T value = F::Of(At<T>(at[1]));
    std::memcpy(at[0], &value, sizeof(value));
  });
}
template <typename F, typename T>
void CallBinary(const Instruction& o) {
  ForElements(o, [](char* const* at) {
    const T value = F::Of(At<T>(at[1]), At<T>(at[2]));
    std::memcpy(at[0], &value, sizeof(value));
  });
}

template <typename T>
Kernel CallOf(Operation operation) {
  switch (operation) {
#define TF_TI_CASE(name)                                    \
  case Operation::k##name:                                  \
    if constexpr (name::kHas<T>) return CallUnary<name, T>; \
    break;
    TF_TI_UNARY_CALLS(TF_TI_CASE)
#undef TF_TI_CASE
#define TF_TI_CASE(name)                                     \
  case Operation::k##name:                                   \
    if constexpr (name::kHas<T>) return CallBinary<name, T>; \
    break;
    TF_TI_BINARY_CALLS(TF_TI_CASE)
#undef TF_TI_CASE
    default:
      break;
  }
  return nullptr;
}

}  // namespace

Kernel FindCall(Operation operation, ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return CallOf<float>(operation);
    case ElementType::kDouble:
      return CallOf<double>(operation);
    case ElementType::kInt32:
      return CallOf<int32_t>(operation);
    case ElementType::kInt64:
      return CallOf<int64_t>(operation);
    default:
      return nullptr;
  }
}

}  // namespace tf_ti
