// The ops of pooled embedding look-ups and of their gradients, and their shape functions.
#include <string>
#include <utility>
#include <vector>

#include "cc/ops/known_shape.h"
#include "cc/ops/shape_function.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/spec/bags/update_spec.h"
#include "cc/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the variable that input i is the handle of, as far as it is known.
ShapeHandle VariableShape(InferenceContext* c, int i) {
  const std::vector<ShapeAndType>* known = c->input_handle_shapes_and_types(i);
  return known == nullptr || known->empty() ? c->UnknownShape() : (*known)[0].shape;
}

// The shape of the table that an input is, or is the handle of.
absl::Status TableShape(InferenceContext* c, bool is_resource, int input, ShapeHandle* table) {
  *table = is_resource ? VariableShape(c, input) : c->input(input);
  return CheckHasRows("emb_table", KnownShape(c, *table));
}

// Checks the inputs of a look-up, and gets the number of its bags.
absl::Status CountBags(InferenceContext* c, const BagSpec& spec, DimensionHandle* num_bags) {
  int64_t count;
  TF_RETURN_IF_ERROR(spec.CheckShapes<PartialTensorShape>(KnownShapes(c), &count));
  if (spec.num_segments >= 0) {
    const tensorflow::Tensor* value = c->input_tensor(spec.num_segments);
    if (value != nullptr) {
      count = value->dtype() == tensorflow::DT_INT32 ? value->scalar<int32_t>()()
                                                     : value->scalar<int64_t>()();
      TF_RETURN_IF_ERROR(CheckNumSegments(count));
    }
  }
  *num_bags = count >= 0         ? c->MakeDim(count)
              : spec.is_packed() ? c->Dim(c->input(spec.indices), 0)
                                 : c->UnknownDim();
  return absl::OkStatus();
}

// Sets the outputs of a look-up.
absl::Status SetPooled(InferenceContext* c, const BagSpec& spec, ShapeHandle table) {
  DimensionHandle num_bags;
  ShapeHandle row, output;
  TF_RETURN_IF_ERROR(CountBags(c, spec, &num_bags));
  TF_RETURN_IF_ERROR(c->Subshape(table, 1, &row));
  TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(num_bags), row, &output));
  c->set_output(spec.table, output);
  if (spec.argmax >= 0) c->set_output(spec.argmax, output);
  return absl::OkStatus();
}

template <bool is_resource, BagKind kind>
absl::Status LookUpShape(InferenceContext* c) {
  BagSpec spec;
  ShapeHandle table;
  TF_RETURN_IF_ERROR(spec.Init(Attributes(c), kind));
  TF_RETURN_IF_ERROR(TableShape(c, is_resource, 0, &table));
  return SetPooled(c, spec, table);
}

template <bool is_resource>
absl::Status SeveralShape(InferenceContext* c) {
  std::vector<BagSpec> specs;
  TF_RETURN_IF_ERROR(BagSpec::InitSeveral(Attributes(c), &specs));
  ShapeHandle table;
  for (const BagSpec& spec : specs) {
    TF_RETURN_IF_ERROR(OfTable(spec.number, TableShape(c, is_resource, spec.table, &table)));
    TF_RETURN_IF_ERROR(OfTable(spec.number, SetPooled(c, spec, table)));
  }
  return absl::OkStatus();
}

absl::Status CheckNumEmbShape(InferenceContext* c) {
  return CheckRank("num_emb", KnownShape(c, c->input(0)), 0);
}

template <bool is_resource>
absl::Status TableGradientShape(InferenceContext* c) {
  BagSpec spec;
  TF_RETURN_IF_ERROR(spec.InitTableGradient(Attributes(c)));
  ShapeHandle row, values, table;
  TF_RETURN_IF_ERROR(is_resource ? TableShape(c, is_resource, 0, &table) : CheckNumEmbShape(c));
  PartialTensorShape grad;
  int64_t ignored;
  TF_RETURN_IF_ERROR(spec.CheckGradientShapes(KnownShapes(c), &grad, &ignored));
  TF_RETURN_IF_ERROR(c->Subshape(c->input(spec.grad()), 1, &row));
  const DimensionHandle count = c->UnknownDim();
  TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(count), row, &values));
  c->set_output(0, c->Vector(count));
  c->set_output(1, values);
  return absl::OkStatus();
}

template <bool is_resource>
absl::Status WeightsGradientShape(InferenceContext* c) {
  BagSpec spec;
  TF_RETURN_IF_ERROR(spec.InitWeightsGradient(Attributes(c)));
  ShapeHandle table;
  TF_RETURN_IF_ERROR(TableShape(c, is_resource, 0, &table));
  PartialTensorShape grad;
  int64_t count;
  TF_RETURN_IF_ERROR(spec.CheckGradientShapes(KnownShapes(c), &grad, &count));
  TF_RETURN_IF_ERROR(CheckRowsOf("grad", grad, count, KnownShape(c, table)));
  c->set_output(0, c->input(spec.indices));
  return absl::OkStatus();
}

absl::Status PartitionShape(InferenceContext* c) {
  PartitionSpec spec;
  TF_RETURN_IF_ERROR(spec.Init(Attributes(c)));
  TF_RETURN_IF_ERROR(CheckNumEmbShape(c));
  DimensionHandle num_bags;
  TF_RETURN_IF_ERROR(CountBags(c, spec.bags, &num_bags));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
  c->set_output(c->num_outputs() - 1, c->Vector(num_bags));
  return absl::OkStatus();
}

template <UpdateRule rule>
absl::Status UpdateShape(InferenceContext* c) {
  UpdateSpec spec;
  TF_RETURN_IF_ERROR(spec.Init(Attributes(c), rule));
  const PartialTensorShape variable = KnownShape(c, VariableShape(c, 0));
  TF_RETURN_IF_ERROR(spec.CheckVariable(variable));
  for (int i = 0; i < spec.num_slots(); ++i) {
    bool ignored;
    const PartialTensorShape slot = KnownShape(c, VariableShape(c, 1 + i));
    TF_RETURN_IF_ERROR(spec.CheckSlot(i, slot, variable, &ignored));
  }
  TF_RETURN_IF_ERROR(spec.CheckGradients(KnownShapes(c), variable));
  for (int i = 0; i < spec.num_numbers(); ++i) {
    const PartialTensorShape shape = KnownShape(c, c->input(spec.first_number + i));
    TF_RETURN_IF_ERROR(spec.CheckNumber(i, shape, spec.numbers[i].dtype));
  }
  return absl::OkStatus();
}

#define TF_TI_NUMBER_TYPES                                                                     \
  "{float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, " \
  "complex64, complex128}"
#define TF_TI_GRADIENT_TYPES "{float, double, half, bfloat16, complex64, complex128}"
#define TF_TI_REDUCTIONS "{'sum', 'mean', 'sqrtn', 'max'}"

// The inputs and attributes that all of these ops have. Macros, as REGISTER_OP is one.
#define TF_TI_OPTIONAL_INPUTS() \
  Input("default_index: num_default * Tindices").Input("per_sample_weights: num_weights * Tweights")
#define TF_TI_BAG_ATTRS(types)                \
  Attr("T: " types)                           \
      .Attr("Tindices: {int32, int64}")       \
      .Attr("Tweights: " types " = DT_FLOAT") \
      .Attr("num_default: int >= 0 = 0")      \
      .Attr("num_weights: int >= 0 = 0")      \
      .Attr("padding_idx: list(int) >= 0 = []")
#define TF_TI_REDUCTION_ATTRS()           \
  Output("argmax: num_argmax * Tindices") \
      .Attr("num_argmax: int >= 0 = 0")   \
      .Attr("reduction: " TF_TI_REDUCTIONS " = 'sum'")

constexpr char kOptionalDoc[] = R"doc(
default_index: None, or one: the row that fills an empty bag, or -1 for zeros.
per_sample_weights: None, or one tensor like indices: the factors of the rows. Its type is that of
  the table, or float where that is a half precision.
padding_idx: None, or one value: indices equal to it are left out of their bags.)doc";

constexpr char kReductionDoc[] = R"doc(
argmax: With num_argmax above 0, for reduction max, the position in indices that each element of the
  output is from, the first where there are several; -1 in an empty bag.
reduction: sum; mean: the sum divided by that of the weights, which are 1 if not given; sqrtn: the
  sum divided by the root of the sum of the weights' squares; max: without weights.)doc";

constexpr char kOffsetsDoc[] = R"doc(
indices: The rows to pool.
offsets: The position in indices at which each bag begins.
include_last_offset: True if offsets has one element more, where the last bag ends.
output: [number of bags, ...].)doc";

constexpr char kPackedDoc[] = R"doc(
indices: The rows to pool, [number of bags, rows in each].
output: [number of bags, ...].)doc";

constexpr char kSegmentsDoc[] = R"doc(
indices: The rows to pool.
segment_ids: The bag of each index, in ascending order.
num_segments: The number of bags.
output: [num_segments, ...]. OpenVINO's operation only has the reduction sum; tf_ti.embedding_bag
  has the others too.)doc";

constexpr char kTableDoc[] = R"doc(
emb_table: [num_emb, ...].)doc";

constexpr char kResourceDoc[] = R"doc(
resource: A variable [num_emb, ...], whose rows are read in place, under its lock.)doc";

std::string BagDoc(const char* name, const char* table, const char* bags) {
  return absl::StrCat("Reduces bags of rows of an embedding table to one row each: OpenVINO's ",
                      name, ".\n", table, bags, kOptionalDoc, kReductionDoc);
}

// Registers an op for a table and for a variable.
#define TF_TI_REGISTER_BAG_OPS(prefix, table, table_doc, is_resource)          \
  REGISTER_OP("TfTi>" prefix "EmbeddingBagOffsets")                            \
      .table.Input("indices: Tindices")                                        \
      .Input("offsets: Tindices")                                              \
      .TF_TI_OPTIONAL_INPUTS()                                                 \
      .Output("output: T")                                                     \
      .TF_TI_REDUCTION_ATTRS()                                                 \
      .TF_TI_BAG_ATTRS(TF_TI_NUMBER_TYPES)                                     \
      .Attr("include_last_offset: bool = false")                               \
      .SetShapeFn(ShapeFunction(LookUpShape<is_resource, BagKind::kOffsets>))  \
      .Doc(BagDoc("EmbeddingBagOffsets", table_doc, kOffsetsDoc));             \
  REGISTER_OP("TfTi>" prefix "EmbeddingBagPacked")                             \
      .table.Input("indices: Tindices")                                        \
      .TF_TI_OPTIONAL_INPUTS()                                                 \
      .Output("output: T")                                                     \
      .TF_TI_REDUCTION_ATTRS()                                                 \
      .TF_TI_BAG_ATTRS(TF_TI_NUMBER_TYPES)                                     \
      .SetShapeFn(ShapeFunction(LookUpShape<is_resource, BagKind::kPacked>))   \
      .Doc(BagDoc("EmbeddingBagPacked", table_doc, kPackedDoc));               \
  REGISTER_OP("TfTi>" prefix "EmbeddingSegmentsSum")                           \
      .table.Input("indices: Tindices")                                        \
      .Input("segment_ids: Tindices")                                          \
      .Input("num_segments: Tindices")                                         \
      .TF_TI_OPTIONAL_INPUTS()                                                 \
      .Output("output: T")                                                     \
      .TF_TI_REDUCTION_ATTRS()                                                 \
      .TF_TI_BAG_ATTRS(TF_TI_NUMBER_TYPES)                                     \
      .SetShapeFn(ShapeFunction(LookUpShape<is_resource, BagKind::kSegments>)) \
      .Doc(BagDoc("EmbeddingSegmentsSum", table_doc, kSegmentsDoc))

TF_TI_REGISTER_BAG_OPS("", Input("emb_table: T"), kTableDoc, false);
TF_TI_REGISTER_BAG_OPS("Resource", Input("resource: resource").SetIsStateful(), kResourceDoc, true);

constexpr char kTablesDoc[] = R"doc(
emb_tables: Each [num_emb, ...], with rows of any shape.)doc";

constexpr char kResourcesDoc[] = R"doc(
resources: Variables [num_emb, ...], with rows of any shape, that are read in place, under their
  locks.)doc";

constexpr char kSeveralDoc[] = R"doc(
indices: Of each table the rows to pool; [number of bags, rows in each] for packed bags.
bounds: Of each table but those with packed bags: the offsets, or the segment_ids.
num_segments: Of each table with segment_ids the number of bags.
default_index: None, or of each table the row that fills an empty bag, or -1 for zeros.
per_sample_weights: None, or of each table, or of those in weighted, a tensor like indices: the
  factors of the rows. Their type is that of the tables, or float where that is a half precision.
output: Of each table [number of bags, ...].
bags: The op of one table that is meant, for each table.
weighted: The tables that have weights, ascending; if empty, all have, or none.
padding_idx: None, or one value for all tables, or one for each of those in padded: indices equal to
  it are left out of their bags.
padded: The tables that have a padding_idx, ascending; if empty, all have, or none.
reductions: That of each table; if empty, all have `reduction`. Those with max have an argmax.
numbers: Those of the tables in errors; if empty, 0, 1, ...
include_last_offset: True if offsets have one element more, where the last bag ends.)doc";

#define TF_TI_REGISTER_SEVERAL(prefix, tables, tables_doc, is_resource)                        \
  REGISTER_OP("TfTi>" prefix "EmbeddingBags")                                                  \
      .tables.Input("indices: N * Tindices")                                                   \
      .Input("bounds: num_bounds * Tindices")                                                  \
      .Input("num_segments: num_counts * Tindices")                                            \
      .TF_TI_OPTIONAL_INPUTS()                                                                 \
      .Output("output: N * T")                                                                 \
      .TF_TI_REDUCTION_ATTRS()                                                                 \
      .TF_TI_BAG_ATTRS(TF_TI_NUMBER_TYPES)                                                     \
      .Attr("N: int >= 1")                                                                     \
      .Attr("bags: list({'offsets', 'packed', 'segments'})")                                   \
      .Attr("num_bounds: int >= 0 = 0")                                                        \
      .Attr("num_counts: int >= 0 = 0")                                                        \
      .Attr("include_last_offset: bool = false")                                               \
      .Attr("weighted: list(int) >= 0 = []")                                                   \
      .Attr("padded: list(int) >= 0 = []")                                                     \
      .Attr("reductions: list(" TF_TI_REDUCTIONS ") >= 0 = []")                                \
      .Attr("numbers: list(int) >= 0 = []")                                                    \
      .SetShapeFn(ShapeFunction(SeveralShape<is_resource>))                                    \
      .Doc(absl::StrCat("Reduces bags of rows of several embedding tables to one row each.\n", \
                        tables_doc, kSeveralDoc, kReductionDoc))

TF_TI_REGISTER_SEVERAL("", Input("emb_tables: N * T"), kTablesDoc, false);
TF_TI_REGISTER_SEVERAL("Resource", Input("resources: N * resource").SetIsStateful(), kResourcesDoc,
                       true);

// The gradients of all three ops take the bags in one form.
#define TF_TI_BOUNDS_ATTRS()                      \
  Attr("bags: {'offsets', 'packed', 'segments'}") \
      .Attr("num_bounds: int >= 0 = 0")           \
      .Attr("include_last_offset: bool = false")  \
      .Attr("reduction: " TF_TI_REDUCTIONS " = 'sum'")

constexpr char kGradientDoc[] = R"doc(
grad: The gradient of the op's output, [number of bags, ...].
indices: That of the op.
bounds: The op's offsets or segment_ids; nothing for packed bags.
bags: The op that this is the gradient of.)doc";

#define TF_TI_REGISTER_TABLE_GRAD(prefix, table, table_doc, is_resource)                  \
  REGISTER_OP("TfTi>" prefix "EmbeddingBagGrad")                                          \
      .table.Input("grad: T")                                                             \
      .Input("indices: Tindices")                                                         \
      .Input("bounds: num_bounds * Tindices")                                             \
      .TF_TI_OPTIONAL_INPUTS()                                                            \
      .Input("argmax: num_argmax * Tindices")                                             \
      .Output("rows: Tindices")                                                           \
      .Output("values: T")                                                                \
      .TF_TI_BAG_ATTRS(TF_TI_GRADIENT_TYPES)                                              \
      .TF_TI_BOUNDS_ATTRS()                                                               \
      .Attr("num_argmax: int >= 0 = 0")                                                   \
      .Attr("number: int = -1")                                                           \
      .SetShapeFn(ShapeFunction(TableGradientShape<is_resource>))                         \
      .Doc(absl::StrCat("The gradient of a pooled embedding look-up's table, by rows.\n", \
                        table_doc, kGradientDoc, kOptionalDoc, kTableGradientDoc))

constexpr char kNumEmbDoc[] = R"doc(
num_emb: The number of rows of the table.)doc";

constexpr char kPlaceDoc[] = R"doc(
resource: The variable that is the table, [num_emb, ...]. Nothing is read but its size; yet the
  gradient is where the variable is, and what updates it has not far to go.)doc";

constexpr char kTableGradientDoc[] = R"doc(
argmax: That of the op, for reduction max.
rows: The rows that were looked up, each once, in ascending order. XLA, which cannot tell how many
  these are, gives more of them: rows in any order, and again and again, with gradients of zeros.
values: Their gradients.
number: That of the table in errors, where there are several; or -1.)doc";

TF_TI_REGISTER_TABLE_GRAD("", Input("num_emb: int64"), kNumEmbDoc, false);
TF_TI_REGISTER_TABLE_GRAD("Resource", Input("resource: resource").SetIsStateful(), kPlaceDoc, true);

#define TF_TI_REGISTER_WEIGHTS_GRAD(prefix, table, table_doc, is_resource)                    \
  REGISTER_OP("TfTi>" prefix "EmbeddingBagWeightsGrad")                                       \
      .table.Input("grad: T")                                                                 \
      .Input("indices: Tindices")                                                             \
      .Input("bounds: num_bounds * Tindices")                                                 \
      .TF_TI_OPTIONAL_INPUTS()                                                                \
      .Output("output: Tweights")                                                             \
      .TF_TI_BAG_ATTRS(TF_TI_GRADIENT_TYPES)                                                  \
      .TF_TI_BOUNDS_ATTRS()                                                                   \
      .SetShapeFn(ShapeFunction(WeightsGradientShape<is_resource>))                           \
      .Doc(absl::StrCat("The gradient of a pooled embedding look-up's per_sample_weights.\n", \
                        table_doc, kGradientDoc, kOptionalDoc, "\noutput: Like indices."))

TF_TI_REGISTER_WEIGHTS_GRAD("", Input("emb_table: T"), kTableDoc, false);
TF_TI_REGISTER_WEIGHTS_GRAD("Resource", Input("resource: resource").SetIsStateful(), kResourceDoc,
                            true);

REGISTER_OP("TfTi>EmbeddingBagPartition")
    .Input("num_emb: int64")
    .Input("indices: Tindices")
    .Input("bounds: num_bounds * Tindices")
    .Input("num_segments: num_counts * Tindices")
    .Input("default_index: num_default * Tindices")
    .Output("ids: num_shards * Tlocal")
    .Output("offsets: num_shards * Tlocal")
    .Output("bag_numbers: num_shards * int64")
    .Output("positions: num_positions * int64")
    .Output("is_empty: bool")
    .Attr("Tindices: {int32, int64}")
    .Attr("Tlocal: {int32, int64}")
    .Attr("bags: {'offsets', 'packed', 'segments'}")
    .Attr("num_bounds: int >= 0 = 0")
    .Attr("num_counts: int >= 0 = 0")
    .Attr("num_default: int >= 0 = 0")
    .Attr("include_last_offset: bool = false")
    .Attr("padding_idx: list(int) >= 0 = []")
    .Attr("num_shards: int >= 1")
    .Attr("num_positions: int >= 0 = 0")
    .Attr("strategy: {'div', 'mod'}")
    .SetShapeFn(ShapeFunction(PartitionShape))
    .Doc(R"doc(
Cuts the bags of a table in shards into bags of each shard.

num_emb: The number of rows of all shards.
indices: The rows to pool.
bounds: The offsets or segment_ids of the bags; nothing for packed bags.
num_segments: One, with segment_ids: the number of bags.
default_index: None, or one: the row that fills an empty bag, or -1.
ids: For each shard the indices that are its rows, as it numbers them, in order. XLA and
  tf.vectorized_map, which cannot tell how many these are, put -1 among them, for padding.
offsets: The position among the shard's ids at which each of its bags begins. Bags without ids there
  are left out, except by XLA and tf.vectorized_map.
bag_numbers: The number of each of these among all bags. Number count, that of all bags, is a bag of
  the default row alone, which is there if a bag is empty.
positions: Nothing, or for each shard the positions of its ids in the indices, as a vector; that of
  the default row is behind the last.
is_empty: [count]: true for bags without indices.
bags: How the bags are given, as for EmbeddingBagGrad.
padding_idx: None, or one value: indices equal to it are left out.
strategy: The rows of each shard. div: the first has the first rows, and so on; where the rows
  cannot be divided, the first shards have one more. mod: shard r % num_shards has row r.)doc");

// The names say slots, which are something else elsewhere: saved models have them.
REGISTER_OP("TfTi>EmbeddingBagSlots")
    .Input("num_emb: int64")
    .Input("rows: Tindices")
    .Input("indices: Tindices")
    .Output("slots: Tindices")
    .Attr("Tindices: {int32, int64}")
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckNumEmbShape(c));
      TF_RETURN_IF_ERROR(CheckRank("rows", KnownShape(c, c->input(1)), 1));
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Finds the positions of indices among the rows that have a gradient.

num_emb: The number of rows of the table.
rows: Those of EmbeddingBagGrad.
indices: Rows of the table, or anything else.
slots: The position of each index in rows, the first one if there are several; -1 if it is not
  there, and -2 if it is no row of the table.)doc");

// The gradients that the updates take: those of rows, or of the bags of a look-up.
#define TF_TI_ROW_INPUTS(types)         \
  Input("indices: Tindices")            \
      .Input("values: T")               \
      .Attr("T: " types)                \
      .Attr("Tindices: {int32, int64}") \
      .Attr("are_distinct: bool = false")
#define TF_TI_BAG_INPUTS(types)               \
  Input("grad: T")                            \
      .Input("indices: Tindices")             \
      .Input("bounds: num_bounds * Tindices") \
      .TF_TI_OPTIONAL_INPUTS()                \
      .Input("argmax: num_argmax * Tindices") \
      .TF_TI_BAG_ATTRS(types)                 \
      .TF_TI_BOUNDS_ATTRS()                   \
      .Attr("num_argmax: int >= 0 = 0")
#define TF_TI_FLOAT_TYPES "{float, double, half, bfloat16}"

constexpr char kRowsDoc[] = R"doc(
indices: The rows; where one comes again, its values are added up. AdamUpdate and AdagradUpdate, and
  a weight_decay, leave a row whose values add up to zeros as it is.
values: Their gradients, [number of indices, ...].
are_distinct: True if no row comes again, except with values of zeros, as in the gradients of pooled
  look-ups. A GPU need not look for such rows then. If one is there, its result is undefined.)doc";

const std::string kBagsDoc = absl::StrCat(
    "\nThe rows are those of a look-up, whose table the variable is. A row whose "
    "gradients add up to zeros is left as it is.\n",
    kGradientDoc, kOptionalDoc, "\nargmax: That of the op, for reduction max.");

std::string UpdateDoc(const char* what, const char* resources, bool bags, const char* numbers) {
  return absl::StrCat(what, bags ? ", where it was looked up, in place.\n" : ", in place.\n",
                      resources, bags ? kBagsDoc : kRowsDoc, numbers);
}

#define TF_TI_REGISTER_SCATTER_SUB(name, gradients, bags)                                      \
  REGISTER_OP("TfTi>" name)                                                                    \
      .Input("resource: resource")                                                             \
      .gradients.Input("scale: Tscale")                                                        \
      .Input("weight_decay: num_decay * Tscale")                                               \
      .Attr("Tscale: " TF_TI_NUMBER_TYPES)                                                     \
      .Attr("num_decay: int >= 0 = 0")                                                         \
      .SetIsStateful()                                                                         \
      .SetShapeFn(ShapeFunction(UpdateShape<UpdateRule::kDescent>))                            \
      .Doc(UpdateDoc("Subtracts scaled gradients from rows of a variable", kVariableDoc, bags, \
                     kScatterSubDoc))

constexpr char kVariableDoc[] = R"doc(
resource: A variable [num_emb, ...].)doc";
constexpr char kScatterSubDoc[] = R"doc(
scale: The factor of gradients, in the type of the sums: float for half precisions, else T.
weight_decay: None, or one, for floats: the part of a row that is subtracted from it too, times
  scale, where the row's gradients do not add up to zeros.)doc";

TF_TI_REGISTER_SCATTER_SUB("ScatterSub", TF_TI_ROW_INPUTS(TF_TI_NUMBER_TYPES), false);
TF_TI_REGISTER_SCATTER_SUB("EmbeddingBagScatterSub", TF_TI_BAG_INPUTS(TF_TI_FLOAT_TYPES), true);

#define TF_TI_REGISTER_ADAM_UPDATE(name, gradients, bags)                                  \
  REGISTER_OP("TfTi>" name)                                                                \
      .Input("resource: resource")                                                         \
      .Input("m: resource")                                                                \
      .Input("v: resource")                                                                \
      .gradients.Input("learning_rate: Tslots")                                            \
      .Input("step: int64")                                                                \
      .Input("beta_1: double")                                                             \
      .Input("beta_2: double")                                                             \
      .Input("epsilon: double")                                                            \
      .Input("weight_decay: double")                                                       \
      .Attr("Tslots: {float, double}")                                                     \
      .Attr("epsilon_hat: bool = true")                                                    \
      .SetIsStateful()                                                                     \
      .SetShapeFn(ShapeFunction(UpdateShape<UpdateRule::kAdam>))                           \
      .Doc(UpdateDoc("A step of Adam on some rows of a variable", kAdamVariablesDoc, bags, \
                     kAdamDoc))

constexpr char kAdamVariablesDoc[] = R"doc(
resource: A variable [num_emb, ...].
m: A variable of its shape, of type Tslots: averages of the gradients.
v: Likewise, of their squares; or [num_emb, 1], of the means of a row's squares.)doc";
constexpr char kAdamDoc[] = R"doc(
learning_rate: A scalar, in the type of the sums: double for double, else float.
step: The number of the step; the first is 1.
beta_1, beta_2: The shares of themselves that the averages keep.
epsilon: A number that is added to the root.
weight_decay: The part of a touched row, times learning_rate, that is subtracted from it too.
epsilon_hat: True if the averages are corrected in the rate, as Keras does it; otherwise each is by
  itself.)doc";

TF_TI_REGISTER_ADAM_UPDATE("AdamUpdate", TF_TI_ROW_INPUTS(TF_TI_FLOAT_TYPES), false);
TF_TI_REGISTER_ADAM_UPDATE("EmbeddingBagAdamUpdate", TF_TI_BAG_INPUTS(TF_TI_FLOAT_TYPES), true);

#define TF_TI_REGISTER_ADAGRAD_UPDATE(name, gradients, bags)                                     \
  REGISTER_OP("TfTi>" name)                                                                      \
      .Input("resource: resource")                                                               \
      .Input("accumulator: resource")                                                            \
      .gradients.Input("learning_rate: Tslots")                                                  \
      .Input("epsilon: double")                                                                  \
      .Attr("Tslots: {float, double}")                                                           \
      .Attr("epsilon_inside_sqrt: bool = true")                                                  \
      .SetIsStateful()                                                                           \
      .SetShapeFn(ShapeFunction(UpdateShape<UpdateRule::kAdagrad>))                              \
      .Doc(UpdateDoc("A step of Adagrad on some rows of a variable", kAdagradVariablesDoc, bags, \
                     kAdagradDoc))

constexpr char kAdagradVariablesDoc[] = R"doc(
resource: A variable [num_emb, ...].
accumulator: A variable of its shape, of type Tslots: sums of the gradients' squares; or
  [num_emb, 1], of the means of a row's squares.)doc";
constexpr char kAdagradDoc[] = R"doc(
learning_rate: A scalar, in the type of the sums: double for double, else float.
epsilon: A number that is added to the accumulator or to its root.
epsilon_inside_sqrt: True if to the accumulator.)doc";

TF_TI_REGISTER_ADAGRAD_UPDATE("AdagradUpdate", TF_TI_ROW_INPUTS(TF_TI_FLOAT_TYPES), false);
TF_TI_REGISTER_ADAGRAD_UPDATE("EmbeddingBagAdagradUpdate", TF_TI_BAG_INPUTS(TF_TI_FLOAT_TYPES),
                              true);

REGISTER_OP("TfTi>AdviseHugePages")
    .Input("resource: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Asks the operating system to put a variable's memory on huge pages, where it has them.

resource: A variable.)doc");

}  // namespace
}  // namespace tf_ti
