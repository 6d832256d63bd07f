#include "cc/compute/recurrent/sequence.h"

#include <algorithm>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/recurrent/parts.h"
#include "cc/compute/recurrent/team.h"

namespace tf_ti {
namespace {

// The place of a cell's gates in panels. Units are done in blocks. A block's panels hold a vector
// for each gate and each of the block's vectors of units, in that order.
struct BlockLayout {
  int panel_vectors;
  int num_panels;
  // A second phase multiplies the reset state by the panels from there on.
  int second_phase;
};

BlockLayout LayoutOf(CellKind kind) {
  switch (kind) {
    case CellKind::kGru:
      return {4, 3, 2};
    case CellKind::kGruLinearBeforeReset:
      return {3, 1, 1};
    default:
      return {4, 1, 1};
  }
}

// The weights of so many lie side by side: a processor that is asked for some bytes fetches more.
constexpr int64_t kBlocksAtOnce = 2;

// Steps whose inputs are multiplied at once: those from index `first` on.
struct Chunk {
  int64_t first;
  int64_t num_steps;
  int64_t first_step;  // of them in time
};

// The workspace of a thread for its part.
template <typename S>
struct Workspace : Part {
  explicit Workspace(const Part& part) : Part(part) {}

  // How far it is: the next call is number `call` of the chunk's.
  Chunk chunk{};
  int64_t call = 0;
  CellStep<S> cell{};  // what all steps have in common

  Buffer<S> panels;     // of w, of some blocks
  Buffer<S> projected;  // [blocks, steps of a chunk, rows, gates of a block]
  Buffer<S> sums;       // [rows, gates of a block]
  Buffer<uint8_t> is_active;
  Buffer<uint8_t> is_shown;
};

struct Blocks {
  int64_t begin;
  int64_t end;
};

template <typename S>
class Sequence {
 public:
  Sequence(const SequenceArgs<S>& args, Parallel* parallel)
      : args_(args),
        parallel_(parallel),
        layout_(LayoutOf(args.kind)),
        cells_(ChooseCellLoops<S>(args.kind)),
        panels_(ChoosePanelLoops<S>(layout_.panel_vectors)),
        num_gates_(NumGates(args.kind)),
        num_phases_(layout_.second_phase < layout_.num_panels ? 2 : 1),
        block_units_(cells_.block_vectors * cells_.lanes),
        num_blocks_((args.hidden + block_units_ - 1) / block_units_),
        row_width_(num_gates_ * block_units_),
        state_stride_(num_blocks_ * block_units_),
        has_mask_(args.mask.data != nullptr || args.lengths != nullptr),
        reads_w_(CanRead(args.w, args.input, args.num_steps * args.batch, /*most=*/32)),
        reads_r_(CanRead(args.r, args.hidden, args.num_steps, /*most=*/8)) {}

  void Run();

 private:
  // Returns true if weights are read where they are: packing many of them does not pay for few
  // times that they are read, or for few rows that are multiplied at once.
  bool CanRead(const Matrix<S>& weights, int64_t depth, int64_t times, int64_t most) const {
    constexpr int64_t kLeastBytes = 512 << 10;
    const bool pays = times <= most && args_.num_steps * args_.batch <= 32 &&
                      depth * args_.hidden * num_gates_ * int64_t{sizeof(S)} >= kLeastBytes;
    return pays && weights.row_stride == 1 && depth % cells_.lanes == 0 &&
           args_.hidden % block_units_ == 0 && block_units_ % 4 == 0;
  }

  void Prepare(Workspace<S>* part) const;
  void PackPanels(const Matrix<S>& matrix, int64_t depth, const Blocks& blocks, S* packed) const;
  void Pack(const Blocks& blocks);
  void Project(const Chunk& chunk, const Blocks& blocks, Workspace<S>* part) const;
  void CopyProjected(const Chunk& chunk, const Blocks& blocks, Workspace<S>* part) const;
  void Dot(const Matrix<S>& left, int64_t num_rows, int64_t depth, const Matrix<S>& weights,
           int64_t block, int panel, const S* init, int64_t init_stride, S* out,
           int64_t out_stride) const;
  void FindActive(int64_t step, Workspace<S>* part) const;
  void Step(int64_t index, int phase, Workspace<S>* part);
  void RunParts(std::vector<Workspace<S>>* parts, bool by_units);

  int64_t StepAt(int64_t index) const {
    return args_.reverse ? args_.num_steps - 1 - index : index;
  }
  Chunk ChunkFrom(int64_t first) const {
    const int64_t last = std::min(first + chunk_steps_, args_.num_steps) - 1;
    return {first, last - first + 1, std::min(StepAt(first), StepAt(last))};
  }
  S* PackedR(int64_t block, int panel) {
    return r_.data() + (block * layout_.num_panels + panel) * panels_.width() * args_.hidden;
  }
  int64_t FirstUnit(int64_t block) const { return block * block_units_; }
  int64_t NumUnits(int64_t block) const {
    return std::min(args_.hidden - FirstUnit(block), block_units_);
  }
  // The place of a block's rows of the chunk.
  S* Projected(const Chunk& chunk, int64_t block, const Workspace<S>& part) const {
    return const_cast<S*>(part.projected.data()) +
           (block - part.block_begin) * chunk.num_steps * part.num_rows() * row_width_;
  }

  const SequenceArgs<S>& args_;
  Parallel* const parallel_;
  const BlockLayout layout_;
  const CellLoops<S> cells_;
  const PanelLoops<S> panels_;
  const int64_t num_gates_;
  const int num_phases_;
  const int64_t block_units_;
  const int64_t num_blocks_;
  const int64_t row_width_;     // numbers of a row in one block
  const int64_t state_stride_;  // of a row of states: whole blocks
  const bool has_mask_;
  const bool reads_w_;
  const bool reads_r_;

  int64_t chunk_steps_ = 1;
  Buffer<S> r_;
  Buffer<S> bias_;            // for each block, the initial values of its sums
  Buffer<S> recurrent_bias_;  // likewise, for the product that is reset
  Buffer<S> h_[2];            // before and after a step, in turns
  Buffer<S> c_;
  Buffer<S> update_;
  Buffer<S> reset_h_;
};

template <typename S>
void Sequence<S>::PackPanels(const Matrix<S>& matrix, int64_t depth, const Blocks& blocks,
                             S* packed) const {
  // Some rows in all panels, then the next ones: more of them where a column's numbers lie side by
  // side.
  const int64_t most_rows = matrix.row_stride == 1 ? 128 : 8;
  for (int64_t row = 0; row < depth; row += most_rows) {
    const Matrix<S> rows{matrix.data + row * matrix.row_stride, matrix.row_stride,
                         matrix.column_stride};
    S* to = packed + row * panels_.width();
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      for (int panel = 0; panel < layout_.num_panels; ++panel, to += depth * panels_.width()) {
        ColumnRun runs[kMostGates];
        for (int v = 0; v < layout_.panel_vectors; ++v) {
          const int64_t vector = panel * layout_.panel_vectors + v;
          const int64_t gate = vector / cells_.block_vectors;
          const int64_t unit = std::min(
              FirstUnit(block) + vector % cells_.block_vectors * cells_.lanes, args_.hidden);
          runs[v] = {args_.gate_positions[gate] * args_.hidden + unit,
                     std::min(args_.hidden - unit, cells_.lanes)};
        }
        panels_.pack(rows, std::min(most_rows, depth - row), runs, to);
      }
    }
  }
}

// Packs the weights of some blocks of units for the steps.
template <typename S>
void Sequence<S>::Pack(const Blocks& blocks) {
  if (!reads_r_) PackPanels(args_.r, args_.hidden, blocks, PackedR(blocks.begin, 0));
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    S* const bias = bias_.data() + block * row_width_;
    std::fill_n(bias, row_width_, S(0));
    for (int64_t gate = 0; gate < num_gates_ && args_.b != nullptr; ++gate) {
      std::copy_n(args_.b + args_.gate_positions[gate] * args_.hidden + FirstUnit(block),
                  NumUnits(block), bias + gate * block_units_);
    }
    if (args_.kind == CellKind::kGruLinearBeforeReset) {
      S* const recurrent = recurrent_bias_.data() + block * row_width_;
      std::fill_n(recurrent, row_width_, S(0));
      if (args_.recurrent_b != nullptr) {
        std::copy_n(args_.recurrent_b + FirstUnit(block), NumUnits(block),
                    recurrent + 2 * block_units_);
      }
    }
  }
}

template <typename S>
void Sequence<S>::Prepare(Workspace<S>* part) const {
  const int64_t rows = part->num_rows();
  part->projected = Buffer<S>(part->num_blocks() * chunk_steps_ * rows * row_width_);
  part->sums = Buffer<S>(rows * row_width_);
  if (!args_.is_projected && !reads_w_) {
    part->panels = Buffer<S>(kBlocksAtOnce * layout_.num_panels * panels_.width() * args_.input);
  }
  if (has_mask_) {
    part->is_active = Buffer<uint8_t>(rows);
    part->is_shown = Buffer<uint8_t>(rows);
    std::fill_n(part->is_shown.data(), rows, 0);
  }
  part->chunk = ChunkFrom(0);
  CellStep<S>& cell = part->cell;
  cell.num_rows = rows;
  cell.activations = args_.activations;
  cell.clip = args_.clip;
  cell.sums = part->sums.data();
  cell.sums_stride = cell.projected_stride = row_width_;
  cell.state_stride = state_stride_;
  cell.is_active = has_mask_ ? part->is_active.data() : nullptr;
  cell.is_shown = has_mask_ ? part->is_shown.data() : nullptr;
  cell.y_stride = args_.y.row_stride;
  cell.gates_stride = NumSavedGates(args_.kind) * args_.hidden;
  cell.arguments_stride = num_gates_ * args_.hidden;
  cell.gate_stride = cell.saved_stride = args_.hidden;
}

// The part of the sums that does not depend on states, for some steps at once.
template <typename S>
void Sequence<S>::Project(const Chunk& chunk, const Blocks& blocks, Workspace<S>* part) const {
  if (args_.is_projected) return CopyProjected(chunk, blocks, part);
  const int64_t rows = part->num_rows();
  const ByStep<const S>& x = args_.x;
  const S* const from = x.At(chunk.first_step, part->row_begin);
  // Packed for this alone: writing to memory and reading again takes longer.
  const S* packed = part->panels.data();
  if (!reads_w_) PackPanels(args_.w, args_.input, blocks, part->panels.data());
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    for (int panel = 0; panel < layout_.num_panels; ++panel) {
      const S* const bias = bias_.data() + block * row_width_ + panel * panels_.width();
      S* const to = Projected(chunk, block, *part) + panel * panels_.width();
      const auto multiply = [&](const S* left, int64_t stride, int64_t count, S* out,
                                int64_t out_stride) {
        if (reads_w_) {
          Dot({left, stride, 1}, count, args_.input, args_.w, block, panel, bias, 0, out,
              out_stride);
        } else {
          panels_.multiply({left, stride, 1}, count, args_.input, packed, bias, 0, out, out_stride);
        }
      };
      if (x.step_stride == rows * x.row_stride) {
        multiply(from, x.row_stride, chunk.num_steps * rows, to, row_width_);
      } else if (rows >= chunk.num_steps) {
        for (int64_t s = 0; s < chunk.num_steps; ++s) {
          multiply(from + s * x.step_stride, x.row_stride, rows, to + s * rows * row_width_,
                   row_width_);
        }
      } else {
        for (int64_t row = 0; row < rows; ++row) {
          multiply(from + row * x.row_stride, x.step_stride, chunk.num_steps, to + row * row_width_,
                   rows * row_width_);
        }
      }
      packed += args_.input * panels_.width();
    }
  }
}

// The products with a panel of weights that are read where they are.
template <typename S>
void Sequence<S>::Dot(const Matrix<S>& left, int64_t num_rows, int64_t depth,
                      const Matrix<S>& weights, int64_t block, int panel, const S* init,
                      int64_t init_stride, S* out, int64_t out_stride) const {
  // A gate's vectors of units are neighbours.
  const int64_t width = std::min(panels_.width(), block_units_);
  for (int64_t i = 0; i < panels_.width(); i += width) {
    const int64_t gate = (panel * panels_.width() + i) / block_units_;
    const int64_t column = args_.gate_positions[gate] * args_.hidden + FirstUnit(block);
    panels_.dot(left, num_rows, depth, weights.data + column * weights.column_stride,
                weights.column_stride, width, init + i, init_stride, out + i, out_stride);
  }
}

// Likewise, where the products are given.
template <typename S>
void Sequence<S>::CopyProjected(const Chunk& chunk, const Blocks& blocks,
                                Workspace<S>* part) const {
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    S* to = Projected(chunk, block, *part);
    const S* const bias = bias_.data() + block * row_width_;
    for (int64_t s = 0; s < chunk.num_steps; ++s) {
      for (int64_t row = part->row_begin; row < part->row_end; ++row, to += row_width_) {
        const S* const from = args_.x.At(chunk.first_step + s, row) + FirstUnit(block);
        std::copy_n(bias, row_width_, to);
        for (int64_t gate = 0; gate < num_gates_; ++gate) {
          const S* const columns = from + args_.gate_positions[gate] * args_.hidden;
          for (int64_t i = 0; i < NumUnits(block); ++i) to[gate * block_units_ + i] += columns[i];
        }
      }
    }
  }
}

template <typename S>
void Sequence<S>::FindActive(int64_t step, Workspace<S>* part) const {
  for (int64_t i = 0; i < part->num_rows(); ++i) {
    const int64_t row = part->row_begin + i;
    const bool is_active =
        args_.lengths != nullptr ? step < args_.lengths[row] : *args_.mask.At(step, row);
    part->is_active[i] = is_active;
    part->is_shown[i] = is_active || (args_.hold_output && part->is_shown[i] != 0);
  }
}

template <typename S>
void Sequence<S>::Step(int64_t index, int phase, Workspace<S>* part) {
  const int64_t step = StepAt(index);
  const int64_t rows = part->num_rows();
  const Chunk& chunk = part->chunk;
  if (phase == 0 && has_mask_) FindActive(step, part);

  const int64_t state_begin = part->row_begin * state_stride_;
  const S* const h = h_[index % 2].data() + state_begin;
  const int64_t saved_row = step * args_.batch + part->row_begin;
  CellStep<S>& cell = part->cell;
  const int begin = phase == 0 ? 0 : layout_.second_phase;
  const int end =
      phase == 0 ? std::min(layout_.second_phase, layout_.num_panels) : layout_.num_panels;
  const S* const left = phase == 0 ? h : reset_h_.data() + state_begin;
  // The product that is reset does not include the inputs' part.
  const bool is_apart = args_.kind == CellKind::kGruLinearBeforeReset;
  for (int64_t block = part->block_begin; block < part->block_end; ++block) {
    const int64_t unit = FirstUnit(block);
    const S* const projected =
        Projected(chunk, block, *part) + (step - chunk.first_step) * rows * row_width_;
    const S* const init = is_apart ? recurrent_bias_.data() + block * row_width_ : projected;
    for (int panel = begin; panel < end; ++panel) {
      const Matrix<S> states{left, state_stride_, 1};
      const S* const from = init + panel * panels_.width();
      const int64_t from_stride = is_apart ? 0 : row_width_;
      S* const to = part->sums.data() + panel * panels_.width();
      if (reads_r_) {
        Dot(states, rows, args_.hidden, args_.r, block, panel, from, from_stride, to, row_width_);
      } else {
        panels_.multiply(states, rows, args_.hidden, PackedR(block, panel), from, from_stride, to,
                         row_width_);
      }
    }
    const auto state = [&](Buffer<S>& buffer) {
      return buffer.size() == 0 ? nullptr : buffer.data() + state_begin + unit;
    };
    cell.num_units = NumUnits(block);
    cell.projected = projected;
    cell.h = h + unit;
    cell.next_h = state(h_[(index + 1) % 2]);
    cell.c = state(c_);
    cell.update = state(update_);
    cell.reset_h = state(reset_h_);
    cell.y = args_.y.At(step, part->row_begin) + unit;
    if (args_.gates != nullptr) cell.gates = args_.gates + saved_row * cell.gates_stride + unit;
    if (args_.arguments != nullptr)
      cell.arguments = args_.arguments + saved_row * cell.arguments_stride + unit;
    if (args_.saved_c != nullptr) cell.saved_c = args_.saved_c + saved_row * args_.hidden + unit;
    if (args_.saved_h != nullptr) cell.saved_h = args_.saved_h + saved_row * args_.hidden + unit;
    cells_.phases[phase](cell);
  }
}

// Weights are packed first, some blocks a step. Then, for each chunk of time, x is multiplied, some
// blocks a step, and the cells follow. So threads that come a little later do their share of all.
template <typename S>
void Sequence<S>::RunParts(std::vector<Workspace<S>>* parts, bool by_units) {
  const int64_t count = parts->size();
  const auto num_calls = [](int64_t blocks) {
    return (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  };
  const auto some = [](int64_t call, int64_t begin, int64_t end) {
    const int64_t first = begin + call * kBlocksAtOnce;
    return Blocks{std::min(first, end), std::min(first + kBlocksAtOnce, end)};
  };
  const int64_t pack_steps = num_calls((num_blocks_ + count - 1) / count);
  const int64_t project_steps = by_units ? pack_steps : num_calls(num_blocks_);
  const int64_t num_chunks = (args_.num_steps + chunk_steps_ - 1) / chunk_steps_;
  const auto work = [&](int64_t step, int64_t i) {
    Workspace<S>* const part = &(*parts)[i];
    if (step < pack_steps) {
      return Pack(some(step, num_blocks_ * i / count, num_blocks_ * (i + 1) / count));
    }
    // The calls for a part come in order.
    const int64_t call = part->call++;
    if (call < project_steps) {
      return Project(part->chunk, some(call, part->block_begin, part->block_end), part);
    }
    const int64_t round = call - project_steps;
    const int64_t of_chunk = num_phases_ == 2 ? round / 2 : round;
    const int phase = num_phases_ == 2 ? round % 2 : 0;
    Step(part->chunk.first + of_chunk, phase, part);
    if (phase == num_phases_ - 1 && of_chunk == part->chunk.num_steps - 1) {
      part->chunk = ChunkFrom(part->chunk.first + part->chunk.num_steps);
      part->call = 0;
    }
  };
  const int64_t num_steps = pack_steps + num_chunks * project_steps + args_.num_steps * num_phases_;
  RunSteps({num_steps, by_units ? num_steps : pack_steps, work, args_.goes_on}, count, parallel_);
}

template <typename S>
void Sequence<S>::Run() {
  const int64_t num_states = args_.batch * state_stride_;
  const auto load_states = [&](const S* from) {
    return LoadStates(from, args_.batch, args_.hidden, state_stride_);
  };
  h_[0] = load_states(args_.h0);
  h_[1] = Buffer<S>(num_states);
  if (args_.kind == CellKind::kLstm) c_ = load_states(args_.c0);
  if (args_.kind == CellKind::kGru) {
    update_ = Buffer<S>(num_states);
    reset_h_ = Buffer<S>(num_states);
  }
  const double weights = static_cast<double>(args_.hidden) * num_blocks_ * row_width_;
  const Parts split = SplitSteps(
      {args_.num_steps, args_.batch, num_blocks_, weights, weights * sizeof(S), 1.0 * args_.hidden,
       args_.is_projected ? 0 : weights / args_.hidden * args_.input},
      *parallel_);
  std::vector<Workspace<S>> parts;
  for (const Part& part : split.parts) parts.emplace_back(part);
  if (args_.num_steps > 0) {
    if (!reads_r_) r_ = Buffer<S>(num_blocks_ * row_width_ * args_.hidden);
    bias_ = Buffer<S>(num_blocks_ * row_width_);
    if (args_.kind == CellKind::kGruLinearBeforeReset) {
      recurrent_bias_ = Buffer<S>(num_blocks_ * row_width_);
    }
    // So many that packing w for them pays, and that their products stay in a near cache.
    constexpr int64_t kChunkBytes = 256 << 10;
    const int64_t step_bytes = parts[0].num_rows() * parts[0].num_blocks() * row_width_ * sizeof(S);
    chunk_steps_ =
        std::clamp<int64_t>(kChunkBytes / std::max<int64_t>(step_bytes, 1), 1, args_.num_steps);
    for (Workspace<S>& part : parts) Prepare(&part);
    RunParts(&parts, split.by_units);
  }
  const auto store_states = [&](const Buffer<S>& from, S* to) {
    StoreStates(from, args_.batch, args_.hidden, state_stride_, to);
  };
  store_states(h_[args_.num_steps % 2], args_.h);
  if (args_.kind == CellKind::kLstm) store_states(c_, args_.c);
}

}  // namespace

int NumGates(CellKind kind) { return kind == CellKind::kLstm ? 4 : kind == CellKind::kRnn ? 1 : 3; }

int NumSavedGates(CellKind kind) {
  return kind == CellKind::kGruLinearBeforeReset ? 4 : kind == CellKind::kRnn ? 0 : NumGates(kind);
}

template <typename S>
void RunSequence(const SequenceArgs<S>& args, Parallel* parallel) {
  Sequence<S>(args, parallel).Run();
}

template void RunSequence<float>(const SequenceArgs<float>&, Parallel*);
template void RunSequence<double>(const SequenceArgs<double>&, Parallel*);

}  // namespace tf_ti
