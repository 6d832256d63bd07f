#include "cc/compute/program/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/builder.h"
#include "cc/compute/program/testing/arrays.h"
#include "cc/compute/program/testing/reference.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

std::vector<Operation> Elementwise() {
  std::vector<Operation> all;
  for (int i = 0; i < static_cast<int>(Operation::kSum); ++i) {
    if (static_cast<Operation>(i) != Operation::kCast) all.push_back(static_cast<Operation>(i));
  }
  return all;
}

double RandomReal(ElementType type, Random* random) {
  const double special[] = {0.0, -0.0, kInfinity, -kInfinity, kNan, 1.0, -1.0, 0.5, 1e30, -1e30};
  if (random->Chance(0.1)) return RoundTo(type, special[random->Int(0, 9)]);
  const double x = random->Real(-3, 3);
  return RoundTo(type, random->Chance(0.2) ? std::round(x) : x * std::exp2(random->Int(-8, 5)));
}

int64_t RandomInteger(ElementType type, Random* random) {
  if (type == ElementType::kBool) return random->Int(0, 1);
  const bool is_narrow = type == ElementType::kInt32;
  const int64_t lowest =
      is_narrow ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  const int64_t special[] = {0, 1, -1, lowest, ~lowest};
  if (random->Chance(0.1)) return special[random->Int(0, 4)];
  return random->Int(-20, 20);
}

Array RandomArray(ElementType type, Dims dims, Random* random) {
  Array array;
  array.type = type;
  array.dims = std::move(dims);
  for (int64_t i = 0; i < CountOf(array.dims); ++i) {
    if (array.is_real()) {
      array.reals.push_back(RandomReal(type, random));
    } else {
      array.integers.push_back(RandomInteger(type, random));
    }
  }
  return array;
}

int64_t StoredBytes(const View& view) { return view.count() * SizeOf(StoredAs(view.type)); }

// A program with its inputs, and memory of red zones for them and for its outputs.
class Case {
 public:
  explicit Case(Random* random) : random_(random) {}

  ProgramBuilder builder;

  // An input or a constant, with what it holds.
  View Add(const Array& array) {
    const std::vector<char> bytes = ToBytes(array);
    if (random_->Chance(0.2)) return builder.AddConstant(array.type, array.dims, bytes.data());
    inputs_.push_back(std::make_unique<Guarded<char>>(bytes));
    return builder.AddInput(array.type, array.dims, random_->Chance(0.2));
  }

  void AddOutput(const View& view) {
    builder.AddOutput(view);
    outputs_.push_back(view);
  }

  // The outputs of a run.
  std::vector<Array> Run() {
    TileLimits limits;
    if (random_->Chance(0.6)) limits = {0, 0, 0, 0.1, random_->Int(1, 300)};  // whatever it costs
    if (random_->Chance(0.6)) limits.copies = -1e9;  // as few copies as there can be
    const Program program(builder.steps(), random_->Pick({0, 64, 192}), limits);
    ProgramRun run(program);
    std::vector<std::unique_ptr<Guarded<char>>> results;
    for (size_t i = 0; i < inputs_.size(); ++i) run.SetInput(i, inputs_[i]->data());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      results.push_back(std::make_unique<Guarded<char>>(StoredBytes(outputs_[i])));
      run.SetOutput(i, results[i]->data());
    }
    if (random_->Chance(0.5)) {
      EXPECT_TRUE(run.RunChecked()) << "an instruction wrote beside its block";
    } else {
      run.RunPrologue();
      RealThreads threads(random_->Int(1, 3));
      Parallel* const parallel = random_->Chance(0.5) ? &threads : nullptr;
      for (int64_t i = random_->Int(1, 3); i > 0; --i) run.Run(parallel);
    }
    std::vector<Array> arrays;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      arrays.push_back(FromBytes(outputs_[i].type, outputs_[i].dims, results[i]->data()));
    }
    return arrays;
  }

 private:
  Random* const random_;
  std::vector<std::unique_ptr<Guarded<char>>> inputs_;
  std::vector<View> outputs_;
};

Dims RandomDims(Random* random, int64_t most = 70) {
  Dims dims(random->Int(0, 4));
  for (int64_t& dim : dims) {
    dim = random->Chance(0.2) ? 1 : random->Int(random->Chance(0.05) ? 0 : 1, most);
    most = std::max<int64_t>(most / 4, 2);
  }
  for (size_t i = 0; i + 1 < dims.size(); ++i) {
    std::swap(dims[i], dims[random->Int(i, dims.size() - 1)]);
  }
  return dims;
}

// Some of the dimensions become 1, and some first ones go.
Dims Narrowed(Dims dims, Random* random) {
  if (random->Chance(0.5)) return dims;
  for (int64_t& dim : dims) {
    if (random->Chance(0.4)) dim = 1;
  }
  dims.erase(dims.begin(), dims.begin() + random->Int(0, dims.size()));
  return dims;
}

double UlpsOf(Operation operation, ElementType type) {
  const bool is_float = type == ElementType::kFloat;
  if (IsHalf(type)) return UlpsOf(operation, ElementType::kFloat) > 0 ? 1 : 0;
  switch (operation) {
    case Operation::kExp:
    case Operation::kLog:
      return 1;
    case Operation::kExpm1:
    case Operation::kLog1p:
    case Operation::kTanh:
    case Operation::kSigmoid:
    case Operation::kErf:
      return is_float ? 2.5 : 4;
    case Operation::kErfc:
      return 5;
    case Operation::kTruncateDiv:
    case Operation::kTruncateMod:
    case Operation::kFloorDiv:
    case Operation::kFloorMod:
      return 0;
    default:
      return IsCall(operation) ? 2 : 0;  // C's library
  }
}

TEST(Program, EachElementwiseOperationIsThatOfNumbersOneByOne) {
  ForRandomCases(300, [](Random* random) {
    for (const Operation operation : Elementwise()) {
      const ElementType type = kTypes[random->Int(0, kNumElementTypes - 1)];
      if (FindKernel(operation, type, type, 0) == nullptr) continue;
      const Dims dims = RandomDims(random);
      Case one(random);
      std::vector<Array> arrays;
      std::vector<View> views;
      for (int k = 0; k < NumOperands(operation); ++k) {
        const bool is_condition = operation == Operation::kSelect && k == 0;
        arrays.push_back(
            RandomArray(is_condition ? ElementType::kBool : type, Narrowed(dims, random), random));
        views.push_back(one.Add(arrays.back()));
      }
      one.AddOutput(*one.builder.Apply(operation, views));
      ExpectAlike(one.Run()[0], ApplyPlainly(operation, arrays), UlpsOf(operation, type),
                  NameOf(operation));
    }
  });
}

// A row of few elements has kernels of its own.
TEST(Program, RowsOfEachCountAreThatOfNumbersOneByOne) {
  Random random(1);
  for (int64_t count = 1; count <= 70; ++count) {
    for (const Operation operation : Elementwise()) {
      for (const ElementType type : kTypes) {
        if (FindKernel(operation, type, type, 0) == nullptr) continue;
        Case one(&random);
        std::vector<Array> arrays;
        std::vector<View> views;
        for (int k = 0; k < NumOperands(operation); ++k) {
          const bool is_condition = operation == Operation::kSelect && k == 0;
          const bool is_one = k != random.Int(0, 2) && random.Chance(0.3);
          arrays.push_back(
              RandomArray(is_condition ? ElementType::kBool : type, {is_one ? 1 : count}, &random));
          views.push_back(one.Add(arrays.back()));
        }
        one.AddOutput(*one.builder.Apply(operation, views));
        ExpectAlike(one.Run()[0], ApplyPlainly(operation, arrays), UlpsOf(operation, type),
                    NameOf(operation));
      }
    }
  }
}

// Several rows of few elements run as one row.
TEST(Program, ShortRowsAreThatOfNumbersOneByOne) {
  Random random(2);
  for (int64_t count = 1; count <= 20; ++count) {
    for (const Operation operation : Elementwise()) {
      const ElementType type = kTypes[random.Int(0, kNumElementTypes - 1)];
      if (FindKernel(operation, type, type, 0) == nullptr) continue;
      const int64_t num_rows = random.Int(1, 600);
      Case one(&random);
      std::vector<Array> arrays;
      std::vector<View> views;
      for (int k = 0; k < NumOperands(operation); ++k) {
        const bool is_condition = operation == Operation::kSelect && k == 0;
        const Dims dims = {random.Chance(0.5) ? 1 : num_rows, random.Chance(0.1) ? 1 : count};
        arrays.push_back(RandomArray(is_condition ? ElementType::kBool : type, dims, &random));
        views.push_back(one.Add(arrays.back()));
      }
      one.AddOutput(*one.builder.Apply(operation, views));
      ExpectAlike(one.Run()[0], ApplyPlainly(operation, arrays), UlpsOf(operation, type),
                  NameOf(operation));
    }
  }
}

Array Row(ElementType type, std::vector<double> reals) {
  Array row;
  row.type = type;
  row.dims = {static_cast<int64_t>(reals.size())};
  for (double& x : reals) x = RoundTo(type, x);
  row.reals = std::move(reals);
  return row;
}

// Subnormal numbers, which TensorFlow's threads flush to 0, are not among them.
TEST(Program, FunctionsOfZerosAndOfWhatIsNotFiniteAreThoseOfC) {
  Random random(1);
  for (const ElementType type : kTypes) {
    if (!IsReal(type)) continue;
    const std::vector<double> some = {0.0, -0.0, kInfinity, -kInfinity, kNan, 1.0, -1.0};
    for (const Operation operation : Elementwise()) {
      if (NumOperands(operation) != 1 || FindKernel(operation, type, type, 0) == nullptr) continue;
      for (int64_t count = 1; count <= 40; ++count) {
        std::vector<double> numbers;
        for (int64_t i = 0; i < count; ++i) numbers.push_back(some[(i + count) % some.size()]);
        const Array x = Row(type, numbers);
        const Array expected = ApplyPlainly(operation, {x});
        Case one(&random);
        one.AddOutput(*one.builder.Apply(operation, {one.Add(x)}));
        const Array found = one.Run()[0];
        ExpectAlike(found, expected, UlpsOf(operation, type), NameOf(operation));
        for (size_t i = 0; i < expected.reals.size(); ++i) {
          if (expected.reals[i] != 0) continue;
          EXPECT_EQ(std::signbit(found.reals[i]), std::signbit(expected.reals[i]))
              << NameOf(operation) << " of " << x.reals[i];
        }
      }
    }
  }
}

// The slopes of these functions are infinite somewhere.
TEST(Program, NoGradientPassesWhereNoneArrives) {
  Random random(1);
  const double results[] = {0.0, -0.0, 1.0, -2.5, kInfinity, -kInfinity, kNan, 1e30};
  for (const ElementType type : {ElementType::kFloat, ElementType::kDouble}) {
    for (const Operation operation :
         {Operation::kSqrtGrad, Operation::kRsqrtGrad, Operation::kReciprocalGrad}) {
      for (const double gradient : {0.0, -0.0, kNan}) {
        for (int64_t count = 1; count <= 40; ++count) {
          std::vector<double> numbers;
          for (int64_t i = 0; i < count; ++i) numbers.push_back(results[i % std::size(results)]);
          Case one(&random);
          const View y = one.Add(Row(type, numbers));
          const View dy = one.Add(Row(type, std::vector<double>(count, gradient)));
          one.AddOutput(*one.builder.Apply(operation, {y, dy}));
          const Array found = one.Run()[0];
          for (int64_t i = 0; i < count; ++i) {
            const double x = found.reals[i];
            EXPECT_TRUE(gradient != 0 || (x == 0 && !std::signbit(x)))
                << NameOf(operation) << " of " << numbers[i] << ": " << x;
            EXPECT_TRUE(gradient == gradient || x != x)
                << NameOf(operation) << " of " << numbers[i] << " times NaN: " << x;
          }
        }
      }
    }
  }
}

TEST(Program, ABoundThatIsNanBoundsNothing) {
  Random random(1);
  for (const ElementType type : kTypes) {
    if (!IsReal(type)) continue;
    for (int64_t count = 1; count <= 40; ++count) {
      Array x = Row(type, std::vector<double>(count, 0));
      for (double& number : x.reals) number = RandomReal(type, &random);
      Case one(&random);
      const View view = one.Add(x), nan = one.Add(Row(type, {kNan})), two = one.Add(Row(type, {2}));
      for (const Operation operation : {Operation::kAtLeast, Operation::kAtMost}) {
        one.AddOutput(*one.builder.Apply(operation, {view, nan}));
        one.AddOutput(*one.builder.Apply(operation, {view, two}));
      }
      const std::vector<Array> found = one.Run();
      Array least = x, most = x;
      for (double& number : least.reals) number = number < 2 ? 2 : number;
      for (double& number : most.reals) number = number > 2 ? 2 : number;
      ExpectAlike(found[0], x, 0, "at least NaN");
      ExpectAlike(found[1], least, 0, "at least 2");
      ExpectAlike(found[2], x, 0, "at most NaN");
      ExpectAlike(found[3], most, 0, "at most 2");
    }
  }
}

TEST(Program, EachCastIsThatOfNumbersOneByOne) {
  ForRandomCases(300, [](Random* random) {
    for (const ElementType from : kTypes) {
      for (const ElementType to : kTypes) {
        Case one(random);
        const Array array = RandomArray(from, RandomDims(random), random);
        one.AddOutput(one.builder.Cast(one.Add(array), to));
        ExpectAlike(one.Run()[0], CastPlainly(array, to), 0, "Cast");
      }
    }
  });
}

TEST(Program, EachNumberOfHalfPrecisionIsReadAndWritten) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const ElementType type : {ElementType::kHalf, ElementType::kBFloat16}) {
    // In rows of each length, as kernels differ by it.
    for (int64_t length = 1; length <= 80; ++length) {
      const int64_t step = length < 64 ? 97 * length : 1 << 13;
      ProgramBuilder builder;
      const View view = builder.AddInput(type, {length});
      builder.AddOutput(view);
      builder.AddOutput(builder.Cast(view, ElementType::kFloat));
      const Program program(builder.steps());
      ProgramRun run(program);
      for (int64_t first = 0; first + length <= 1 << 16; first += length == 80 ? 80 : step) {
        const Guarded<uint16_t> given(std::vector<uint16_t>(&all[first], &all[first] + length));
        Guarded<uint16_t> same(length);
        Guarded<float> wide(length);
        run.SetInput(0, given.data());
        run.SetOutput(0, same.data());
        run.SetOutput(1, wide.data());
        run.RunPrologue();
        run.Run();
        for (int64_t i = 0; i < length; ++i) {
          const uint16_t bits = given.data()[i];
          const double x = FromBits(type, bits), y = wide.data()[i];
          ASSERT_TRUE(x != x ? y != y : x == y && std::signbit(x) == std::signbit(y)) << bits;
          const double back = FromBits(type, same.data()[i]);
          ASSERT_TRUE(x != x ? back != back : bits == same.data()[i]) << bits;
        }
      }
    }
  }
}

TEST(Program, FloatsAreRoundedToTheNearestOfHalfPrecision) {
  ForRandomCases(40, [](Random* random) {
    const ElementType type = random->Pick({ElementType::kHalf, ElementType::kBFloat16});
    Array array;
    array.type = ElementType::kFloat;
    array.dims = {4096};
    for (int64_t i = 0; i < 4096; ++i) {
      // Any number of the type, or one between two of them: the middle, and beside it.
      const auto bits = static_cast<uint16_t>(random->Int(0, 0xffff));
      const double low = FromBits(type, bits);
      const double high = FromBits(type, static_cast<uint16_t>(bits + 1));
      double x = low + (high - low) * random->Pick({0.0, 0.5, 0.5, 0.25, random->Real(0, 1)});
      auto y = static_cast<float>(x);
      if (random->Chance(0.3)) y = std::nextafter(y, random->Chance(0.5) ? 1e38f : -1e38f);
      if (random->Chance(0.02))
        y = static_cast<float>(random->Pick({65504.0, 65520.0, 65519.9, 3.3961e38}));
      array.reals.push_back(y);
    }
    Case one(random);
    const View view = one.Add(array);
    const View rounded = one.builder.Cast(view, type);
    one.AddOutput(rounded);
    one.AddOutput(one.builder.Cast(rounded, ElementType::kFloat));
    const std::vector<Array> found = one.Run();
    const Array expected = CastPlainly(array, type);
    ExpectAlike(found[0], expected, 0, "ToHalf");
    ExpectAlike(found[1], CastPlainly(expected, ElementType::kFloat), 0, "a float of it");
  });
}

TEST(Program, EachReductionIsThatOfNumbersOneByOne) {
  ForRandomCases(600, [](Random* random) {
    const auto operation = static_cast<Operation>(
        random->Int(static_cast<int>(Operation::kSum), static_cast<int>(Operation::kAny)));
    const bool is_index = operation == Operation::kArgMax || operation == Operation::kArgMin;
    const ElementType from = kTypes[random->Int(0, kNumElementTypes - 1)];
    const ElementType to =
        is_index ? random->Pick({ElementType::kInt32, ElementType::kInt64}) : from;
    if (FindKernel(operation, from, to, 0) == nullptr) return;
    Dims dims = RandomDims(random);
    dims.push_back(random->Int(1, 40));
    const int dim = random->Int(0, dims.size() - 1);
    const bool may_be_empty = operation == Operation::kSum || operation == Operation::kProd ||
                              operation == Operation::kAll || operation == Operation::kAny;
    if (!may_be_empty) dims[dim] = std::max<int64_t>(dims[dim], 1);
    Array array = RandomArray(from, dims, random);
    // Products grow without bounds.
    for (double& x : array.reals) {
      if (operation == Operation::kProd) x = RoundTo(from, random->Real(0.5, 2));
    }
    Case one(random);
    one.AddOutput(*one.builder.Reduce(operation, one.Add(array), dim, to));
    std::vector<double> magnitudes;
    Array expected = ReducePlainly(operation, array, dim, to, &magnitudes);
    const bool is_sum = operation == Operation::kSum;
    const double ulps = is_sum ? 4 : operation == Operation::kProd ? 40 : 0;
    Array found = one.Run()[0];
    // The largest of both zeros is either.
    for (Array* const result : {&found, &expected}) {
      for (double& x : result->reals) x += 0.0;
    }
    ExpectAlike(found, expected, ulps, NameOf(operation), is_sum ? &magnitudes : nullptr);
  });
}

// Numbers of each kind in each place, alone or with few others.
TEST(Program, EachReductionIsThatOfNumbersThatAreNotFinite) {
  ForRandomCases(600, [](Random* random) {
    const ElementType type = random->Pick(
        {ElementType::kFloat, ElementType::kDouble, ElementType::kHalf, ElementType::kBFloat16});
    const Operation operation =
        random->Pick({Operation::kSum, Operation::kProd, Operation::kMax, Operation::kMin,
                      Operation::kArgMax, Operation::kArgMin});
    const bool is_index = operation == Operation::kArgMax || operation == Operation::kArgMin;
    const ElementType to =
        is_index ? random->Pick({ElementType::kInt32, ElementType::kInt64}) : type;
    const double largest = is_index ? LargestOf(type) : 4;
    std::vector<double> some;
    for (int64_t i = random->Int(1, 4); i > 0; --i) {
      some.push_back(
          random->Pick({kNan, kInfinity, -kInfinity, largest, -largest, 0.0, -0.0, 2.0}));
    }
    Array array =
        RandomArray(type, {random->Int(1, 5), random->Int(1, 40), random->Int(1, 40)}, random);
    for (double& x : array.reals) x = some[random->Int(0, some.size() - 1)];
    const int dim = random->Int(0, 2);
    Case one(random);
    one.AddOutput(*one.builder.Reduce(operation, one.Add(array), dim, to));
    Array expected = ReducePlainly(operation, array, dim, to, nullptr);
    Array found = one.Run()[0];
    // The largest of both zeros is either.
    const bool is_extreme = operation == Operation::kMax || operation == Operation::kMin;
    for (Array* const result : {&found, &expected}) {
      for (double& x : result->reals) x += is_extreme ? 0.0 : -0.0;
    }
    ExpectAlike(found, expected, 0, NameOf(operation));
  });
}

TEST(Program, ProductsAreSumsOfProducts) {
  ForRandomCases(300, [](Random* random) {
    const ElementType type = random->Pick(
        {ElementType::kFloat, ElementType::kDouble, ElementType::kHalf, ElementType::kBFloat16});
    const int64_t m = random->Int(1, 9), k = random->Int(1, 40);
    const int64_t n = random->Chance(0.2) ? 1 : random->Int(1, 70);
    const int64_t batch = random->Int(1, 4);
    const bool has_batch = random->Chance(0.5), is_shared = random->Chance(0.3);
    Dims left = {m, k}, right = {k, n};
    if (has_batch) left.insert(left.begin(), batch);
    if (has_batch) right.insert(right.begin(), is_shared ? 1 : batch);
    const auto finite = [&](Dims dims) {
      Array array = RandomArray(type, std::move(dims), random);
      for (double& x : array.reals) x = RoundTo(type, random->Real(-1, 1));
      return array;
    };
    const Array a = finite(left), b = finite(right);
    Case one(random);
    View x = one.Add(a), y = one.Add(b);
    // The same matrices, as they lie transposed.
    const auto turned = [&](const View& view) {
      std::vector<int> order(view.rank());
      for (int d = 0; d < view.rank(); ++d) order[d] = d;
      std::swap(order[view.rank() - 1], order[view.rank() - 2]);
      const View copy = one.builder.AddResult(view.type, view.Transpose(order).dims);
      one.builder.CopyInto(view.Transpose(order), copy);
      return copy.Transpose(order);
    };
    if (random->Chance(0.5)) x = turned(x);
    if (random->Chance(0.5)) y = turned(y);
    one.AddOutput(*one.builder.Multiply(x, y));
    Array expected;
    expected.type = type;
    expected.dims = has_batch ? Dims{batch, m, n} : Dims{m, n};
    std::vector<double> magnitudes;
    for (int64_t i = 0; i < CountOf(expected.dims); ++i) {
      const int64_t column = i % n, row = i / n % m, which = i / n / m;
      long double sum = 0, magnitude = 0;
      for (int64_t d = 0; d < k; ++d) {
        const long double product = static_cast<long double>(a.reals[(which * m + row) * k + d]) *
                                    b.reals[((is_shared ? 0 : which) * k + d) * n + column];
        sum += product;
        magnitude += std::fabs(product);
      }
      expected.reals.push_back(RoundTo(type, sum));
      magnitudes.push_back(static_cast<double>(magnitude));
    }
    ExpectAlike(one.Run()[0], expected, 2 + k / 4.0, "MatMul", &magnitudes);
  });
}

TEST(Program, GathersTakeTheNearestRow) {
  ForRandomCases(200, [](Random* random) {
    const ElementType type = static_cast<ElementType>(random->Int(0, kNumElementTypes - 1));
    const int64_t outer = random->Int(0, 4), size = random->Int(1, 9);
    const int64_t inner = random->Int(0, 20), count = random->Int(0, 12);
    const bool is_batched = random->Chance(0.4);
    const Array rows = RandomArray(type, {outer, size, inner}, random);
    Array indices;
    indices.type = random->Pick({ElementType::kInt32, ElementType::kInt64});
    indices.dims = is_batched ? Dims{outer, count} : Dims{count};
    for (int64_t i = 0; i < CountOf(indices.dims); ++i) {
      const bool is_wild = random->Chance(0.1);
      indices.integers.push_back(is_wild ? RandomInteger(indices.type, random)
                                         : random->Int(-2, static_cast<int>(size) + 1));
    }
    Case one(random);
    const View row_view = one.Add(rows), index_view = one.Add(indices);
    one.AddOutput(one.builder.Gather(row_view, index_view, 1, is_batched));
    Array expected;
    expected.type = type;
    expected.dims = {outer, count, inner};
    for (int64_t i = 0; i < CountOf(expected.dims); ++i) {
      const int64_t k = i / inner / count, j = i / inner % count;
      const int64_t index = indices.integers[is_batched ? k * count + j : j];
      const int64_t row = std::clamp<int64_t>(index, 0, size - 1);
      const int64_t at = (k * size + row) * inner + i % inner;
      if (rows.is_real()) {
        expected.reals.push_back(rows.reals[at]);
      } else {
        expected.integers.push_back(rows.integers[at]);
      }
    }
    ExpectAlike(one.Run()[0], expected, 0, "Gather");
  });
}

// Views.

Array TransposedPlainly(const Array& array, const std::vector<int>& order) {
  const View from = View::Whole(0, ElementType::kBool, array.dims).Transpose(order);
  Array result;
  result.type = array.type;
  result.dims = from.dims;
  for (int64_t i = 0; i < from.count(); ++i) {
    int64_t rest = i, at = 0;
    for (int d = from.rank() - 1; d >= 0; --d) {
      at += rest % from.dims[d] * from.strides[d];
      rest /= from.dims[d];
    }
    if (array.is_real()) {
      result.reals.push_back(array.reals[at]);
    } else {
      result.integers.push_back(array.integers[at]);
    }
  }
  return result;
}

Array SlicedPlainly(const Array& array, int dim, int64_t begin, int64_t size, int64_t step) {
  Array result;
  result.type = array.type;
  result.dims = array.dims;
  result.dims[dim] = size;
  int64_t inner = 1;
  for (size_t d = dim + 1; d < array.dims.size(); ++d) inner *= array.dims[d];
  for (int64_t i = 0; i < CountOf(result.dims); ++i) {
    const int64_t at =
        (i / inner / size * array.dims[dim] + begin + i / inner % size * step) * inner + i % inner;
    if (array.is_real()) {
      result.reals.push_back(array.reals[at]);
    } else {
      result.integers.push_back(array.integers[at]);
    }
  }
  return result;
}

Array JoinedPlainly(const std::vector<Array>& parts, int dim) {
  Array result;
  result.type = parts[0].type;
  result.dims = parts[0].dims;
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= result.dims[d];
  for (size_t d = dim + 1; d < result.dims.size(); ++d) inner *= result.dims[d];
  result.dims[dim] = 0;
  for (const Array& part : parts) result.dims[dim] += part.dims[dim];
  for (int64_t i = 0; i < outer; ++i) {
    for (const Array& part : parts) {
      const int64_t count = part.dims[dim] * inner;
      for (int64_t j = i * count; j < (i + 1) * count; ++j) {
        if (part.is_real()) {
          result.reals.push_back(part.reals[j]);
        } else {
          result.integers.push_back(part.integers[j]);
        }
      }
    }
  }
  return result;
}

// Parts one behind the other, as those of a concatenation or a roll are.
View Joined(ProgramBuilder* builder, const std::vector<View>& parts, int dim) {
  Dims dims = parts[0].dims;
  dims[dim] = 0;
  for (const View& part : parts) dims[dim] += part.dims[dim];
  const View whole = builder->AddResult(parts[0].type, dims);
  int64_t at = 0;
  for (const View& part : parts) {
    builder->CopyInto(part, whole.Slice(dim, at, part.dims[dim], 1));
    at += part.dims[dim];
  }
  return whole;
}

View Rolled(ProgramBuilder* builder, const View& view, int dim, int64_t shift) {
  const int64_t rest = view.dims[dim] - shift;
  return Joined(builder, {view.Slice(dim, rest, shift, 1), view.Slice(dim, 0, rest, 1)}, dim);
}

// A graph of many operations, views and reductions, and the same of arrays one after the other.
TEST(Program, GraphsComputeWhatTheirOperationsDo) {
  ForRandomCases(400, [](Random* random) {
    struct Node {
      View view;
      Array array;
    };
    Case one(random);
    std::vector<Node> nodes;
    const auto add = [&](const View& view, Array array) {
      nodes.push_back({view, std::move(array)});
    };
    const Dims dims = RandomDims(random, 24);
    const auto is_exact = [](Operation operation) {
      return UlpsOf(operation, ElementType::kFloat) == 0;
    };
    for (int64_t i = random->Int(1, 4); i > 0; --i) {
      const ElementType type = kTypes[random->Int(0, kNumElementTypes - 1)];
      Array array = RandomArray(type, Narrowed(dims, random), random);
      const View view = one.Add(array);
      add(view, std::move(array));
    }
    for (int64_t i = random->Int(5, 60); i > 0; --i) {
      const Node node = nodes[random->Int(0, nodes.size() - 1)];
      const int rank = node.view.rank();
      switch (random->Int(0, 10)) {
        case 4:
        case 5: {  // a roll
          if (rank == 0) break;
          const int dim = random->Int(0, rank - 1);
          const int64_t extent = node.view.dims[dim];
          if (extent < 2) break;
          const int64_t shift = random->Int(1, extent - 1), rest = extent - shift;
          add(Rolled(&one.builder, node.view, dim, shift),
              JoinedPlainly({SlicedPlainly(node.array, dim, rest, shift, 1),
                             SlicedPlainly(node.array, dim, 0, rest, 1)},
                            dim));
          break;
        }
        case 6: {  // all that could be joined, or some of it
          if (rank == 0) break;
          const int dim = random->Int(0, rank - 1);
          std::vector<View> views;
          std::vector<Array> arrays;
          for (const Node& other : nodes) {
            if (other.view.type != node.view.type || views.size() > 3) continue;
            Dims dims = other.view.dims;
            if (static_cast<int>(dims.size()) != rank) continue;
            dims[dim] = node.view.dims[dim];
            if (dims != node.view.dims || random->Chance(0.3)) continue;
            views.push_back(other.view);
            arrays.push_back(other.array);
          }
          if (views.empty()) break;
          const View joined = Joined(&one.builder, views, dim);
          if (joined.count() == 0 || joined.count() > 10000) break;
          add(joined, JoinedPlainly(arrays, dim));
          break;
        }
        case 7: {  // a padding, of zeros
          if (rank == 0 || node.view.count() == 0 || node.view.count() > 3000) break;
          const int dim = random->Int(0, rank - 1);
          const int64_t before = random->Int(0, 3), after = random->Int(0, 3);
          Array zero = node.array;
          zero.dims = {};
          zero.reals.resize(zero.is_real());
          zero.integers.resize(!zero.is_real());
          for (double& x : zero.reals) x = 0;
          for (int64_t& x : zero.integers) x = 0;
          const View filling = one.Add(zero);
          Dims dims = node.view.dims;
          dims[dim] += before + after;
          const View whole = one.builder.AddResult(node.view.type, dims);
          std::vector<Array> parts;
          for (const int64_t size : {before, after}) {
            dims[dim] = size;
            Array part = zero;
            part.dims = dims;
            if (part.is_real()) part.reals.assign(CountOf(dims), 0);
            if (!part.is_real()) part.integers.assign(CountOf(dims), 0);
            parts.push_back(std::move(part));
          }
          parts.insert(parts.begin() + 1, node.array);
          const bool is_filled = random->Chance(0.5);  // all of it, and written again
          if (is_filled) one.builder.CopyInto(filling, whole);
          const int64_t extent = node.view.dims[dim];
          one.builder.CopyInto(node.view, whole.Slice(dim, before, extent, 1));
          if (!is_filled) {
            one.builder.CopyInto(filling, whole.Slice(dim, 0, before, 1));
            one.builder.CopyInto(filling, whole.Slice(dim, before + extent, after, 1));
          }
          add(whole, JoinedPlainly(parts, dim));
          break;
        }
        case 8: {  // some of the rows along a dimension
          if (rank == 0) break;
          const int dim = random->Int(0, rank - 1);
          if (node.view.dims[dim] == 0) break;
          Array rows;
          rows.type = ElementType::kInt32;
          rows.dims = {random->Int(1, 3)};
          std::vector<Array> chosen;
          for (int64_t i = 0; i < rows.dims[0]; ++i) {
            rows.integers.push_back(random->Int(0, node.view.dims[dim] - 1));
            chosen.push_back(SlicedPlainly(node.array, dim, rows.integers[i], 1, 1));
          }
          add(one.builder.Gather(node.view, one.Add(rows), dim, /*is_batched=*/false),
              JoinedPlainly(chosen, dim));
          break;
        }
        case 0: {
          std::vector<int> order(rank);
          for (int d = 0; d < rank; ++d) order[d] = d;
          for (int d = 0; d + 1 < rank; ++d) std::swap(order[d], order[random->Int(d, rank - 1)]);
          add(node.view.Transpose(order), TransposedPlainly(node.array, order));
          break;
        }
        case 1: {
          if (rank == 0) break;
          const int dim = random->Int(0, rank - 1);
          const int64_t extent = node.view.dims[dim];
          if (extent == 0) break;
          int64_t begin = random->Int(0, extent - 1), step = random->Pick({1, 1, 2, -1});
          const int64_t most = step < 0 ? begin + 1 : (extent - 1 - begin) / step + 1;
          const int64_t size = random->Int(1, most);
          add(node.view.Slice(dim, begin, size, step),
              SlicedPlainly(node.array, dim, begin, size, step));
          break;
        }
        case 2: {
          if (rank == 0) break;
          const int dim = random->Int(0, rank - 1);
          const auto operation = static_cast<Operation>(
              random->Int(static_cast<int>(Operation::kMax), static_cast<int>(Operation::kAny)));
          const bool is_index = operation == Operation::kArgMax || operation == Operation::kArgMin;
          const ElementType to = is_index ? ElementType::kInt32 : node.view.type;
          if (node.view.dims[dim] == 0) break;
          std::optional<View> reduced = one.builder.Reduce(operation, node.view, dim, to);
          if (!reduced.has_value()) break;
          Array expected = ReducePlainly(operation, node.array, dim, to, nullptr);
          if (expected.is_real()) {  // the largest of both zeros is either
            Array zero;
            zero.type = to;
            zero.reals = {0};
            reduced = *one.builder.Apply(Operation::kAdd, {*reduced, one.Add(zero)});
            expected = ApplyPlainly(Operation::kAdd, {expected, zero});
          }
          add(*reduced, std::move(expected));
          break;
        }
        case 3: {
          const ElementType to = kTypes[random->Int(0, kNumElementTypes - 1)];
          add(one.builder.Cast(node.view, to), CastPlainly(node.array, to));
          break;
        }
        default: {
          const std::vector<Operation> all = Elementwise();
          const Operation operation = all[random->Int(0, all.size() - 1)];
          if (!is_exact(operation)) break;
          std::vector<View> views;
          std::vector<Array> arrays;
          for (int k = 0; k < NumOperands(operation); ++k) {
            const bool is_condition = operation == Operation::kSelect && k == 0;
            const Node* operand = &node;
            for (int tries = 0; tries < 8; ++tries) {
              const Node* const other = &nodes[random->Int(0, nodes.size() - 1)];
              if (other->view.type == (is_condition ? ElementType::kBool : node.view.type)) {
                operand = other;
              }
            }
            views.push_back(operand->view);
            arrays.push_back(operand->array);
          }
          if (operation == Operation::kSelect && views[0].type != ElementType::kBool) break;
          if (operation == Operation::kSelect && views[1].type != views[2].type) break;
          const std::optional<View> result = one.builder.Apply(operation, views);
          if (!result.has_value()) break;
          add(*result, ApplyPlainly(operation, arrays));
        }
      }
    }
    std::vector<Array> expected;
    for (int64_t i = random->Int(1, 5); i > 0; --i) {
      const Node& node =
          random->Chance(0.5) ? nodes.back() : nodes[random->Int(0, nodes.size() - 1)];
      one.AddOutput(node.view);
      expected.push_back(node.array);
    }
    const std::vector<Array> found = one.Run();
    for (size_t i = 0; i < expected.size(); ++i) {
      ExpectAlike(found[i], expected[i], 0, "output " + std::to_string(i));
    }
  });
}

// Arrays without elements have shapes, and no memory.
TEST(Program, ExtentsAre0Anywhere) {
  Random random(1);
  for (int64_t code = 0; code < 27; ++code) {
    const Dims dims = {code % 3, code / 3 % 3, code / 9};
    for (const ElementType type : kTypes) {
      Case one(&random);
      std::vector<Array> expected;
      const auto add = [&](const View& view, const Array& array) {
        one.AddOutput(view);
        expected.push_back(array);
      };
      const Array array = RandomArray(type, dims, &random);
      const View x = one.Add(array);
      for (const Operation operation : Elementwise()) {
        if (FindKernel(operation, type, type, 0) == nullptr || NumOperands(operation) > 2) continue;
        if (UlpsOf(operation, type) > 0) continue;
        const std::vector<View> views(NumOperands(operation), x);
        const std::vector<Array> arrays(NumOperands(operation), array);
        add(*one.builder.Apply(operation, views), ApplyPlainly(operation, arrays));
      }
      for (const ElementType to : kTypes) {
        add(one.builder.Cast(x, to), CastPlainly(array, to));
      }
      const std::vector<int> order = {2, 0, 1};
      add(x.Transpose(order), TransposedPlainly(array, order));
      for (int dim = 0; dim < 3; ++dim) {
        add(Joined(&one.builder, {x, x}, dim), JoinedPlainly({array, array}, dim));
        add(x.Slice(dim, 0, dims[dim] / 2, 1), SlicedPlainly(array, dim, 0, dims[dim] / 2, 1));
        for (const Operation operation : {Operation::kProd, Operation::kAll, Operation::kArgMin}) {
          const bool is_index = operation == Operation::kArgMin;
          const ElementType to = is_index ? ElementType::kInt64 : type;
          if (FindKernel(operation, type, to, 0) == nullptr || (is_index && dims[dim] == 0))
            continue;
          add(*one.builder.Reduce(operation, x, dim, to),
              ReducePlainly(operation, array, dim, to, nullptr));
        }
        // All rows from the last to the first, the same for each element before.
        if (dims[dim] == 0) continue;
        for (const bool is_batched : {false, true}) {
          Array rows;
          rows.type = ElementType::kInt32;
          rows.dims = is_batched ? Dims(dims.begin(), dims.begin() + dim + 1) : Dims{dims[dim]};
          for (int64_t i = 0; i < CountOf(rows.dims); ++i) {
            rows.integers.push_back(dims[dim] - 1 - i % dims[dim]);
          }
          add(one.builder.Gather(x, one.Add(rows), dim, is_batched),
              SlicedPlainly(array, dim, dims[dim] - 1, dims[dim], -1));
        }
      }
      if (IsReal(type)) {
        const std::optional<View> product = one.builder.Multiply(x, x.Transpose({0, 2, 1}));
        EXPECT_EQ(product.has_value(), CountOf(dims) > 0);  // left to kernels
      }
      const std::vector<Array> found = one.Run();
      for (size_t i = 0; i < expected.size(); ++i) {
        ExpectAlike(found[i], expected[i], type == ElementType::kFloat ? 0 : 1,
                    "output " + std::to_string(i));
      }
    }
  }
}

// Errors of functions over all sizes of numbers.
void Sweep(Operation operation, ElementType type, double least, double most) {
  constexpr int64_t kCount = 1 << 16;
  Random random(1);
  Array array;
  array.type = type;
  array.dims = {kCount};
  for (int64_t i = 0; i < kCount; ++i) {
    array.reals.push_back(RoundTo(type, random.Real(least, most)));
  }
  Case one(&random);
  one.AddOutput(*one.builder.Apply(operation, {one.Add(array)}));
  const Array found = one.Run()[0];
  double worst = 0, where = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const long double x = array.reals[i];
    const long double exact = operation == Operation::kExp     ? std::exp(x)
                              : operation == Operation::kExpm1 ? std::expm1(x)
                              : operation == Operation::kLog   ? std::log(x)
                              : operation == Operation::kLog1p ? std::log1p(x)
                              : operation == Operation::kTanh  ? std::tanh(x)
                              : operation == Operation::kErf   ? std::erf(x)
                                                               : 1 / (1 + std::exp(-x));
    const double error = std::fabs(
        static_cast<double>((found.reals[i] - exact) / UlpOf(type, static_cast<double>(exact))));
    if (error > worst) {
      worst = error;
      where = array.reals[i];
    }
  }
  EXPECT_LE(worst, UlpsOf(operation, type)) << NameOf(operation) << " of " << where;
  testing::Test::RecordProperty(NameOf(operation), std::to_string(worst));
}

TEST(Program, FunctionsAreRightToAFewUnitsInTheLastPlace) {
  for (const ElementType type : {ElementType::kFloat, ElementType::kDouble}) {
    const double most = type == ElementType::kFloat ? 87 : 708;
    for (const double scale : {1e-3, 1.0, 10.0, most}) {
      Sweep(Operation::kExp, type, -scale, scale);
      Sweep(Operation::kExpm1, type, -scale, scale);
      Sweep(Operation::kTanh, type, -scale, scale);
      Sweep(Operation::kErf, type, -scale, scale);
      Sweep(Operation::kSigmoid, type, -scale, scale);
      Sweep(Operation::kLog, type, 1e-30, scale);
      Sweep(Operation::kLog, type, 0.5, 1.5 + scale);
      Sweep(Operation::kLog1p, type, std::max(-scale, -1.0), scale);
    }
  }
}

TEST(Program, MemoryIsSharedByWhatDoesNotLiveAtOnce) {
  ProgramBuilder builder;
  View view = builder.AddInput(ElementType::kFloat, {1024});
  for (int i = 0; i < 100; ++i) view = *builder.Apply(Operation::kNeg, {view});
  builder.AddOutput(view);
  EXPECT_LE(Program(builder.steps()).arena_bytes(), 2 * 4096);
}

// An unused product, and an unused copy, leave no step.
TEST(Program, StepsAreOfOutputs) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kHalf, {64, 64});
  const View y = builder.AddInput(ElementType::kFloat, {64, 64});
  const std::vector<float> ones(64 * 64, 1);
  const View z = builder.AddConstant(ElementType::kFloat, {64, 64}, ones.data());
  builder.Multiply(builder.Cast(x, ElementType::kFloat), *builder.Apply(Operation::kExp, {z}));
  builder.Contiguous(y.Transpose({1, 0}));
  builder.AddOutput(*builder.Apply(Operation::kNeg, {y}));
  const Program program(builder.steps());
  EXPECT_EQ(program.num_instructions(), 1);
  EXPECT_EQ(program.arena_bytes(), 0);
}

// A program takes memory for the parts, and none for the table.
TEST(Program, PartsOfHalfPrecisionBecomeFloats) {
  constexpr int64_t kRows = 1000, kColumns = 64;
  Random random(1);
  for (const ElementType type : {ElementType::kHalf, ElementType::kBFloat16}) {
    for (const bool stays : {false, true}) {
      ProgramBuilder builder;
      const View table = builder.AddInput(type, {kRows, kColumns}, stays);
      const View row = builder.AddInput(ElementType::kInt32, {2});
      builder.AddOutput(builder.Gather(table, row, 0, /*is_batched=*/false));
      builder.AddOutput(builder.Gather(table.Transpose({1, 0}), row, 1, /*is_batched=*/false));
      builder.AddOutput(
          *builder.Apply(Operation::kAdd, {table.Slice(0, 7, 1, 1), table.Slice(0, 900, 3, -400)}));
      builder.AddOutput(*builder.Reduce(Operation::kMax, table.Slice(1, 5, 1, 1), 0, type));
      builder.AddOutput(
          *builder.Multiply(table.Slice(0, 3, 4, 1), table.Slice(0, 3, 4, 1).Transpose({1, 0})));
      const Program program(builder.steps());
      EXPECT_LE(program.arena_bytes(), 16 << 10);
      const Array numbers = RandomArray(type, {kRows, kColumns}, &random);
      const std::vector<char> stored = ToBytes(numbers);
      const int32_t rows[] = {998, 5};
      std::vector<std::vector<char>> results;
      for (const int64_t count : {2 * 64, 64 * 2, 3 * 64, 1, 4 * 4}) {
        results.emplace_back(2 * count);
      }
      ProgramRun run(program);
      run.SetInput(0, stored.data());
      run.SetInput(1, rows);
      for (size_t i = 0; i < results.size(); ++i) run.SetOutput(i, results[i].data());
      EXPECT_TRUE(run.RunChecked());
      const auto row_of = [&](int64_t i) { return SlicedPlainly(numbers, 0, i, 1, 1); };
      const Array two = JoinedPlainly({row_of(998), row_of(5)}, 0);
      ExpectAlike(FromBytes(type, {2, 64}, results[0].data()), two, 0, "rows");
      ExpectAlike(FromBytes(type, {64, 2}, results[1].data()), TransposedPlainly(two, {1, 0}), 0,
                  "columns");
      const Array others = JoinedPlainly({row_of(900), row_of(500), row_of(100)}, 0);
      ExpectAlike(FromBytes(type, {3, 64}, results[2].data()),
                  ApplyPlainly(Operation::kAdd, {row_of(7), others}), 0, "a sum");
      ExpectAlike(
          FromBytes(type, {1, 1}, results[3].data()),
          ReducePlainly(Operation::kMax, SlicedPlainly(numbers, 1, 5, 1, 1), 0, type, nullptr), 0,
          "the largest of a column");
    }
  }
}

// Steps that read a whole input share its floats.
TEST(Program, AllOfHalfPrecisionBecomesFloatsOnce) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kHalf, {64, 64});
  const View sum = *builder.Apply(Operation::kMaximum, {x, x.Transpose({1, 0})});
  builder.AddOutput(builder.Cast(*builder.Apply(Operation::kMaximum, {sum, x.Slice(0, 3, 1, 1)}),
                                 ElementType::kFloat));
  // The floats, a transposed copy and the two largest.
  EXPECT_EQ(Program(builder.steps()).num_instructions(), 4);
}

// Each part of a sum is one of the parts of its operands.
TEST(Program, SumsOfRollsReadWhatIsRolled) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kFloat, {64, 64});
  const View up = Rolled(&builder, x, 0, 1), down = Rolled(&builder, x, 0, 63);
  builder.AddOutput(*builder.Apply(Operation::kAdd, {up, down}));
  const Program program(builder.steps());
  EXPECT_EQ(program.num_instructions(), 3);
  EXPECT_EQ(program.arena_bytes(), 0);
}

// What is copied is written again before the copy is read.
TEST(Program, CopiesAreOfWhatWasThere) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kFloat, {256});
  const View y = builder.AddInput(ElementType::kFloat, {256});
  const View twice = builder.AddResult(ElementType::kFloat, {256});
  builder.CopyInto(x, twice);
  const View rolled = Rolled(&builder, twice, 0, 1);
  builder.CopyInto(y, twice);
  builder.AddOutput(*builder.Apply(Operation::kSub, {rolled, twice}));
  TileLimits limits;
  limits.copies = -1e9;
  const Program program(builder.steps(), 0, limits);
  ProgramRun run(program);
  std::vector<float> from(256), other(256), result(256);
  for (int i = 0; i < 256; ++i) {
    from[i] = static_cast<float>(i);
    other[i] = static_cast<float>(7 * i);
  }
  run.SetInput(0, from.data());
  run.SetInput(1, other.data());
  run.SetOutput(0, result.data());
  run.RunPrologue();
  run.Run();
  for (int i = 0; i < 256; ++i) EXPECT_EQ(result[i], from[(i + 255) % 256] - other[i]);
}

TEST(Program, TilesOfColumnsHaveWholeCacheLines) {
  for (const int64_t width : {8, 64}) {
    ProgramBuilder builder;
    const View x = builder.AddInput(ElementType::kFloat, {100000, width});
    builder.AddOutput(*builder.Reduce(Operation::kSum, x, 0, ElementType::kFloat));
    const std::vector<TileGroup> groups = FindTileGroups(builder.steps(), TileLimits());
    ASSERT_EQ(groups.size(), 1);
    EXPECT_EQ(groups[0].num_units, width == 8 ? 1 : 64);
    if (width == 64) {
      EXPECT_EQ(groups[0].units_of_tile, 16);
    }
  }
}

// An instruction takes more time than a copy of few elements.
TEST(Program, SmallArraysAreCopied) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kFloat, {8});
  const View rolled = Rolled(&builder, x, 0, 4);
  builder.AddOutput(*builder.Apply(Operation::kAdd, {*builder.Apply(Operation::kNeg, {rolled}),
                                                     *builder.Apply(Operation::kExp, {rolled})}));
  EXPECT_EQ(Program(builder.steps()).num_instructions(), 5);
}

// A product reads all of an array, so that it is there for the sum too.
TEST(Program, WhatOthersReadIsCopied) {
  ProgramBuilder builder;
  const View x = builder.AddInput(ElementType::kFloat, {64, 64});
  const View rolled = Rolled(&builder, x, 0, 1);
  builder.AddOutput(*builder.Apply(Operation::kAdd, {rolled, *builder.Multiply(rolled, x)}));
  EXPECT_EQ(Program(builder.steps()).num_instructions(), 4);
}

TEST(Program, WhatStaysIsComputedOnce) {
  ProgramBuilder builder;
  const float two = 2;
  const View weights = builder.AddInput(ElementType::kFloat, {3}, /*stays=*/true);
  const View scaled = *builder.Apply(Operation::kMul,
                                     {weights, builder.AddConstant(ElementType::kFloat, {}, &two)});
  const View x = builder.AddInput(ElementType::kFloat, {3});
  builder.AddOutput(*builder.Apply(Operation::kAdd, {scaled, x}));
  const Program program(builder.steps());
  ProgramRun run(program);
  float w[] = {1, 2, 3}, given[] = {10, 20, 30}, result[3];
  run.SetInput(0, w);
  run.SetInput(1, given);
  run.SetOutput(0, result);
  run.RunPrologue();
  w[0] = 100;  // too late
  run.Run();
  EXPECT_EQ(std::vector<float>(result, result + 3), (std::vector<float>{12, 24, 36}));
}

// An output is written in each run, wherever it is then.
TEST(Program, WhatStaysIsAnOutputOfEachRun) {
  ProgramBuilder builder;
  const View weights = builder.AddInput(ElementType::kFloat, {3}, /*stays=*/true);
  builder.AddOutput(*builder.Apply(Operation::kNeg, {weights}));
  const Program program(builder.steps());
  ProgramRun run(program);
  const float w[] = {1, 2, 3};
  float results[2][3] = {};
  run.SetInput(0, w);
  run.SetOutput(0, results[0]);
  run.RunPrologue();
  for (float* const result : {results[0], results[1]}) {
    run.SetOutput(0, result);
    run.Run();
    EXPECT_EQ(std::vector<float>(result, result + 3), (std::vector<float>{-1, -2, -3}));
  }
}

// Such counts are only compared with a limit.
TEST(View, CountsThatOverflowAreLarge) {
  const int64_t large = int64_t{1} << 32, largest = std::numeric_limits<int64_t>::max();
  for (const Dims& dims : {Dims{large, large}, Dims{largest, 2}, Dims{large, large, large, 3},
                           Dims{2, largest, largest}}) {
    EXPECT_GE(CountOf(dims), int64_t{1} << 50);
    EXPECT_GT(View::Whole(0, ElementType::kDouble, {}).BroadcastTo(dims).bytes(), 0);
  }
  EXPECT_EQ(CountOf({large, large, 0}), 0);
  EXPECT_EQ(CountOf({}), 1);
  EXPECT_EQ(CountOf({3, large, 2}), 6 * large);
}

// More loops than an instruction has.
TEST(Program, ArraysHaveManyDimensions) {
  ForRandomCases(50, [](Random* random) {
    Dims dims(random->Int(5, 8));
    for (int64_t& dim : dims) dim = random->Int(1, 3);
    std::vector<int> order(dims.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
    for (size_t d = 0; d + 1 < order.size(); ++d) {
      std::swap(order[d], order[random->Int(d, order.size() - 1)]);
    }
    const Array x = RandomArray(ElementType::kInt32, dims, random);
    const Array transposed = TransposedPlainly(x, order);
    const Array y = RandomArray(ElementType::kInt32, Narrowed(transposed.dims, random), random);
    Case one(random);
    const View sum = *one.builder.Apply(Operation::kAdd, {one.Add(x).Transpose(order), one.Add(y)});
    one.AddOutput(sum);
    ExpectAlike(one.Run()[0], ApplyPlainly(Operation::kAdd, {transposed, y}), 0, "Add");
  });
}

// Few instructions, whichever of the extents are large.
TEST(Program, LargeExtentsAreLoopsOfAnInstruction) {
  for (int large = 0; large < 6; ++large) {
    Dims dims(6, 2);
    dims[large] = 1000;
    ProgramBuilder builder;
    const View x = builder.AddInput(ElementType::kFloat, dims);
    const View turned = x.Transpose({5, 4, 3, 2, 1, 0});
    const View y = builder.AddInput(ElementType::kFloat, turned.dims);
    builder.AddOutput(*builder.Apply(Operation::kAdd, {turned, y}));
    builder.AddOutput(turned);
    EXPECT_LE(builder.most_instructions(), 4);
    // The last tile has as many as the others.
    EXPECT_LE(Program(builder.steps()).num_instructions(), 2 * (4 + 1 + 4));
  }
}

TEST(Program, ARunCountsItsInstructions) {
  ProgramBuilder builder;
  View view = builder.AddInput(ElementType::kFloat, {1});
  for (int i = 0; i < 1000; ++i) view = *builder.Apply(Operation::kNeg, {view});
  builder.AddOutput(view);
  const Program program(builder.steps());
  EXPECT_GE(ProgramRun(program).bytes(), 1000 * static_cast<int64_t>(sizeof(Instruction)));
}

}  // namespace
}  // namespace tf_ti
