#include "cc/compute/program/program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "cc/compute/program/merged_loops.h"
#include "cc/compute/program/sources.h"
#include "cc/compute/program/tiles.h"
#include "cc/compute/program/widening.h"

namespace tf_ti {
namespace {

// A cache line, and the widest vector.
constexpr int64_t kLine = 64;

int64_t Rounded(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

Program::Program(const ProgramSteps& given, int64_t red_zone, const TileLimits& limits)
    : num_inputs_(given.num_inputs),
      num_outputs_(given.num_outputs),
      thread_time_(limits.thread),
      of_inputs_(given.num_inputs),
      of_outputs_(given.num_outputs) {
  const ProgramSteps steps = WideningParts(ReadingSources(WithoutDeadSteps(given), limits.copies));
  const std::vector<TileGroup> groups = FindTileGroups(steps, limits);
  for (const bool in_prologue : {true, false}) {
    for (const ProgramSteps::Step& step : steps.steps) {
      if (!in_prologue && !groups.empty()) break;
      const bool stays = steps.Stays(step);
      if (stays == in_prologue) AddStep(step);
      if (stays == in_prologue && !stays) time_ += TimeOf(step);
    }
    if (in_prologue) num_in_prologue_ = instructions_.size();
  }
  for (const TileGroup& group : groups) AddGroup(group);
  num_in_main_ = instructions_.size();
  AddLoopSteps();
  turns_.resize(instructions_.size());
  FindTurns(0, static_cast<int>(num_in_main_), 0);
  // A loop may have more iterations than there are ints.
  constexpr double kMost = std::numeric_limits<int>::max();
  num_instructions_ =
      static_cast<int>(std::min(kMost, NumInstructions(0, static_cast<int>(num_in_main_))));
  Plan(steps, red_zone);
}

// Adds the instruction that runs a loop.
void Program::AddLoop(const ProgramSteps::Step& step) {
  const ProgramSteps::Loop& given = *step.loop;
  Loop loop;
  loop.instruction = static_cast<int>(instructions_.size());
  loop.count = given.count;
  loop.expected_count = given.expected_count();
  loop_of_number_[given.number] = static_cast<int>(loops_.size());
  loop_of_instruction_[loop.instruction] = static_cast<int>(loops_.size());
  loops_.push_back(loop);
  waiting_.push_back(step.loop);
  Instruction instruction{};
  instruction.run = ProgramRun::RunLoop;
  for (const std::optional<View>& view :
       {std::optional<View>(), given.num_iterations, given.goes_on, given.stops}) {
    AddOperand(view.has_value() ? &*view : nullptr, 0);
  }
  instructions_.push_back(instruction);
}

// Adds the instructions of loops, and of loops in them.
void Program::AddLoopSteps() {
  constexpr double kPatience = 50e3, kInstruction = 8;  // nanoseconds
  for (size_t l = 0; l < waiting_.size(); ++l) {
    const ProgramSteps::Loop& given = *waiting_[l];
    const auto add = [this](auto begin, auto end) {
      for (auto step = begin; step != end; ++step) AddStep(*step);
      return static_cast<int>(instructions_.size());
    };
    const auto body = given.steps.begin() + static_cast<int64_t>(given.num_condition_steps);
    Loop loop = loops_[l];
    loop.begin = static_cast<int>(instructions_.size());
    loop.condition_end = add(given.steps.begin(), body);
    loop.end = add(body, given.steps.end());
    loop.last = add(given.last.begin(), given.last.end());
    double time = 1 + kInstruction * (loop.end - loop.begin);
    for (const ProgramSteps::Step& inner : given.steps) time += TimeOf(inner);
    loop.patience = std::max<int64_t>(1, static_cast<int64_t>(kPatience / time));
    loop.moves = std::move(loops_[l].moves);
    loops_[l] = std::move(loop);
  }
  waiting_.clear();
}

// Numbers instructions in the order in which they run. Returns the number of the next one.
int Program::FindTurns(int begin, int end, int turn) {
  for (int i = begin; i < end; ++i) {
    turns_[i] = turn++;
    const auto found = loop_of_instruction_.find(i);
    if (found == loop_of_instruction_.end()) continue;
    Loop& loop = loops_[found->second];
    loop.first_turn = turns_[i];
    turn = FindTurns(loop.begin, loop.last, turn);
    loop.last_turn = turn - 1;
  }
  return turn;
}

double Program::NumInstructions(int begin, int end) const {
  double count = end - begin;
  if (loops_.empty()) return count;
  for (int i = begin; i < end; ++i) {
    const auto found = loop_of_instruction_.find(i);
    if (found == loop_of_instruction_.end()) continue;
    const Loop& loop = loops_[found->second];
    count += static_cast<double>(loop.expected_count) * NumInstructions(loop.begin, loop.end) +
             (loop.last - loop.end);
  }
  return count;
}

// Adds an operand of the next instruction; null for none.
void Program::AddOperand(const View* view, int64_t offset) {
  Operand operand;
  if (view != nullptr) {
    operand.block = view->block;
    operand.offset = view->offset + offset;
    for (const Move& move : view->moves) {
      if (move.step == 0) continue;
      const int at = static_cast<int>(operands_.size());
      loops_[loop_of_number_.at(move.loop)].moves.push_back(
          {at, move.step, move.alternates, move.ends_there});
    }
  }
  operands_.push_back(operand);
}

void Program::AddGroup(const TileGroup& group) {
  Part part;
  part.begin = static_cast<int>(instructions_.size());
  part.has_tiles = group.num_units > 1;
  const int64_t tile = part.has_tiles ? group.units_of_tile : 1;
  part.num_tiles = group.num_units / tile;
  const int64_t rest = group.num_units % tile;
  const auto add = [&](int64_t first, int64_t count) {
    for (size_t s = 0; s < group.steps.size(); ++s) {
      const size_t begin = operands_.size();
      AddStep(part.has_tiles ? group.Cut(s, first, count) : group.steps[s]);
      for (size_t i = begin; i < operands_.size() && part.has_tiles; ++i) {
        const size_t k = (i - begin) % 4;
        if (k >= group.steps[s].views.size()) continue;
        const std::vector<int>& inside = group.inside;
        Operand& operand = operands_[i];
        operand.is_inside = std::count(inside.begin(), inside.end(), operand.block) > 0;
        const int dim = group.dims[s][k];
        if (operand.is_inside || dim < 0 || count < tile) continue;
        operand.tile_step = group.steps[s].views[k].strides[dim] * group.sizes[s] * tile;
      }
    }
  };
  add(0, tile);
  part.end = static_cast<int>(instructions_.size());
  if (rest > 0) add(part.num_tiles * tile, rest);
  part.last = static_cast<int>(instructions_.size());
  for (const ProgramSteps::Step& step : group.steps) part.time += TimeOf(step);
  time_ += part.time;
  parts_.push_back(part);
}

void Program::AddStep(const ProgramSteps::Step& step) {
  if (step.loop != nullptr) return AddLoop(step);
  Instruction instruction{};
  std::fill_n(instruction.sizes, kMostLoops, 1);
  Loops loops;
  int layout = 0;
  int64_t count = 0;  // of the only row
  if (IsReduction(step.operation)) {
    // [others, reduced, side by side]; where one number alone lies there, those that are reduced
    // do.
    for (int d = 2; d >= 0; --d) loops.sizes.push_back(step.views[0].dims[d]);
    loops.sizes[1] = step.views[1].dims[1];
    loops.strides.resize(2);
    for (int k = 0; k < 2; ++k) {
      for (int d = 2; d >= 0; --d) loops.strides[k].push_back(step.views[k].strides[d]);
    }
    layout = loops.sizes[0] == 1 && loops.strides[1][1] == SizeOf(step.from);
  } else if (step.operation == Operation::kMatMul) {
    const View &result = step.views[0], &left = step.views[1], &right = step.views[2];
    loops.sizes = {result.dims[2], left.dims[2], result.dims[1], result.dims[0]};
    loops.strides = {{result.strides[2], 0, result.strides[1], result.strides[0]},
                     {0, left.strides[2], left.strides[1], left.strides[0]},
                     {right.strides[2], right.strides[1], 0, right.strides[0]}};
    layout = AreDots(left, right);
  } else if (step.operation == Operation::kGather) {
    const View &result = step.views[0], &rows = step.views[1];
    loops.sizes = {result.dims[2], result.dims[1], result.dims[0], rows.dims[1]};
    for (const View& view : step.views) {
      loops.strides.push_back({view.strides[2], view.strides[1], view.strides[0], 0});
    }
  } else {
    loops = LoopsOf(step);
    layout = loops.layout;
    if (loops.sizes.size() == 1) count = loops.sizes[0];
  }
  instruction.run = FindKernel(step.operation, step.from, step.to, layout, count);
  const int num_loops = static_cast<int>(loops.sizes.size());
  for (int d = 0; d < num_loops && d < kMostLoops; ++d) {
    instruction.sizes[d] = loops.sizes[d];
    for (size_t k = 0; k < step.views.size(); ++k) {
      instruction.strides[k][d] = loops.strides[k][d];
    }
  }
  const int64_t* const sizes = instruction.sizes;
  instruction.num_rows = sizes[1] * sizes[2] * sizes[3];
  // An instruction for each turn of the loops that are too many.
  Dims turn(std::max(num_loops - kMostLoops, 0));
  for (bool more = true; more;) {
    for (size_t k = 0; k < 4; ++k) {
      int64_t offset = 0;
      for (size_t d = 0; d < turn.size() && k < step.views.size(); ++d) {
        offset += turn[d] * loops.strides[k][kMostLoops + d];
      }
      AddOperand(k < step.views.size() ? &step.views[k] : nullptr, offset);
    }
    instructions_.push_back(instruction);
    more = false;
    for (size_t d = 0; d < turn.size() && !more; ++d) {
      more = ++turn[d] < loops.sizes[kMostLoops + d];
      if (!more) turn[d] = 0;
    }
  }
}

void Program::Plan(const ProgramSteps& steps, int64_t red_zone) {
  using Storage = ProgramSteps::Storage;
  const int num_blocks = static_cast<int>(steps.blocks.size());
  const int num_instructions = static_cast<int>(instructions_.size());
  // What the prologue computes lives as long as the run.
  std::vector<Life> lives(num_blocks), inside(num_blocks);
  for (int i = 0; i < num_instructions; ++i) {
    for (int k = 0; k < 4; ++k) {
      const int block = operands_[4 * i + k].block;
      if (block < 0) continue;
      Life& life = operands_[4 * i + k].is_inside ? inside[block] : lives[block];
      life.first = std::min(life.first, turns_[i]);
      life.last = std::max(life.last, turns_[i]);
    }
  }
  // What a loop and others touch lives as long as the loop. Loops in loops come first.
  for (auto loop = loops_.rbegin(); loop != loops_.rend(); ++loop) {
    for (Life& life : lives) {
      const bool touches = life.first <= loop->last_turn && life.last >= loop->first_turn;
      const bool is_within = life.first >= loop->first_turn && life.last <= loop->last_turn;
      if (!touches || is_within) continue;
      life.first = std::min(life.first, loop->first_turn);
      life.last = std::max(life.last, loop->last_turn);
    }
  }
  for (Part& part : parts_) {
    if (!part.has_tiles) continue;
    // Tiles are in all instructions at once; what is inside lives for one of them.
    std::vector<int> blocks;
    for (int i = 4 * part.begin; i < 4 * part.last; ++i) {
      const int block = operands_[i].block;
      if (block < 0) continue;
      if (!operands_[i].is_inside) {
        lives[block].first = std::min(lives[block].first, turns_[part.begin]);
        lives[block].last = std::max(lives[block].last, turns_[part.last - 1]);
      } else if (inside[block].bytes == 0) {
        Life& life = inside[block];
        life.bytes = (steps.blocks[block].bytes + part.num_tiles - 1) / part.num_tiles;
        // The last tile has the memory of the others.
        const int length = part.end - part.begin;
        if (part.last - part.end == length) {
          life.last -= length;
        } else if (part.has_rest()) {
          life.first = turns_[part.begin];
        }
        blocks.push_back(block);
      }
    }
    part.inside_bytes = FindPlaces(blocks, /*red_zone=*/0, &inside);
  }
  int64_t constant_bytes = 0;
  std::vector<int> order;
  for (int b = 0; b < num_blocks; ++b) {
    const ProgramSteps::Block& block = steps.blocks[b];
    lives[b].bytes = block.bytes;
    if (block.storage == Storage::kConstant) {
      lives[b].offset = constant_bytes;
      constant_bytes += Rounded(block.bytes);
    }
    if (block.storage != Storage::kTemporary || lives[b].first > lives[b].last) continue;
    if (block.stays) lives[b].last = num_instructions;
    order.push_back(b);
  }
  arena_bytes_ = FindPlaces(order, red_zone, &lives);
  for (const int b : order) lives_.push_back(lives[b]);
  constants_ = Buffer<char>(constant_bytes);
  for (int b = 0; b < num_blocks; ++b) {
    const ProgramSteps::Block& block = steps.blocks[b];
    if (block.storage == Storage::kConstant) {
      std::copy(block.constant.begin(), block.constant.end(), constants_.data() + lives[b].offset);
    }
  }
  for (int i = 0; i < num_instructions; ++i) {
    for (int k = 0; k < 4; ++k) {
      const Operand& operand = operands_[4 * i + k];
      if (operand.block < 0) continue;
      if (operand.is_inside) {
        // From the beginning of a thread's memory on.
        const int64_t offset = inside[operand.block].offset + operand.offset;
        instructions_[i].at[k] = reinterpret_cast<char*>(offset);
        continue;
      }
      const ProgramSteps::Block& block = steps.blocks[operand.block];
      const Place place = {i, k, operand.offset};
      switch (block.storage) {
        case Storage::kInput:
          of_inputs_[block.number].push_back(place);
          break;
        case Storage::kOutput:
          of_outputs_[block.number].push_back(place);
          break;
        case Storage::kConstant:
          instructions_[i].at[k] = constants_.data() + lives[operand.block].offset + operand.offset;
          break;
        case Storage::kTemporary:
          in_arena_.push_back({i, k, lives[operand.block].offset + operand.offset});
      }
    }
  }
}

// Gives each block the first place that is free for as long as it lives. Returns the bytes of all.
int64_t Program::FindPlaces(std::vector<int> blocks, int64_t red_zone, std::vector<Life>* lives) {
  int64_t size = 0;
  std::sort(blocks.begin(), blocks.end(),
            [&](int a, int b) { return (*lives)[a].first < (*lives)[b].first; });
  std::vector<Life> alive;  // by offset
  for (const int b : blocks) {
    Life& life = (*lives)[b];
    alive.erase(std::remove_if(alive.begin(), alive.end(),
                               [&](const Life& other) { return other.last < life.first; }),
                alive.end());
    const int64_t bytes = Rounded(life.bytes) + red_zone;
    int64_t offset = red_zone;
    auto at = alive.begin();
    for (; at != alive.end() && offset + bytes > at->offset; ++at) {
      offset = std::max(offset, at->offset + Rounded(at->bytes) + red_zone);
    }
    life.offset = offset;
    alive.insert(at, life);
    size = std::max(size, offset + bytes);
  }
  return size;
}

ProgramRun::ProgramRun(const Program& program)
    : program_(&program),
      instructions_(program.instructions_),
      loops_(program.loops_.size()),
      arena_(std::max<int64_t>(program.arena_bytes_, 1)) {
  Set(program.in_arena_, arena_.data());
  for (size_t l = 0; l < loops_.size(); ++l) {
    Loop& loop = loops_[l];
    loop.run = this;
    loop.of = &program.loops_[l];
    instructions_[loop.of->instruction].at[0] = reinterpret_cast<char*>(&loop);
    for (const Program::Loop::Move& move : loop.of->moves) {
      char** const at = &instructions_[move.operand / 4].at[move.operand % 4];
      loop.even.push_back({at, move.step});
      loop.odd.push_back({at, move.alternates ? -move.step : move.step});
      (move.alternates ? loop.alternating : loop.steady).push_back({at, move.step});
      if (move.ends_there) loop.to_last.push_back({at, move.step});
    }
  }
}

void ProgramRun::RunLoop(const Instruction& instruction) {
  Loop& loop = *reinterpret_cast<Loop*>(instruction.at[0]);
  const Program::Loop& of = *loop.of;
  ProgramRun& run = *loop.run;
  int64_t count = of.count;
  if (instruction.at[1] != nullptr) {
    int64_t given;
    std::memcpy(&given, instruction.at[1], sizeof(given));
    count = std::min(count, given);
  }
  for (const Loop::Move& move : loop.to_last) *move.at -= (count - 1) * move.step;
  int64_t patience = of.patience, t = 0;
  for (; t < count; ++t) {
    if (--patience == 0) {
      patience = of.patience;
      if (run.IsStopped()) break;
    }
    if (instruction.at[3] != nullptr && *instruction.at[3] != 0) break;
    if (instruction.at[2] != nullptr) {
      run.RunRange(of.begin, of.condition_end);
      if (*instruction.at[2] == 0) break;
    }
    run.RunRange(of.condition_end, of.end);
    for (const Loop::Move& move : t % 2 == 0 ? loop.even : loop.odd) *move.at += move.step;
  }
  run.RunRange(of.end, of.last);
  for (const Loop::Move& move : loop.to_last) *move.at += (count - 1) * move.step;
  for (const Loop::Move& move : loop.steady) *move.at -= t * move.step;
  for (const Loop::Move& move : loop.alternating) *move.at -= t % 2 * move.step;
}

void ProgramRun::Set(const std::vector<Program::Place>& places, char* base) {
  for (const Program::Place& place : places) {
    instructions_[place.instruction].at[place.operand] = base + place.offset;
  }
}

void ProgramRun::SetInput(int number, const void* elements) {
  // Operands are read alone.
  Set(program_->of_inputs_[number], static_cast<char*>(const_cast<void*>(elements)));
}

void ProgramRun::SetOutput(int number, void* elements) {
  Set(program_->of_outputs_[number], static_cast<char*>(elements));
}

std::vector<ProgramRun::Pointer> ProgramRun::PointersTo(const std::vector<Program::Place>& places) {
  std::vector<Pointer> pointers;
  for (const Program::Place& place : places) {
    pointers.push_back({&instructions_[place.instruction].at[place.operand], place.offset});
  }
  return pointers;
}

int64_t ProgramRun::bytes() const {
  const auto instructions = static_cast<int64_t>(instructions_.size() * sizeof(Instruction));
  return instructions + arena_.size() + inside_.size();
}

void ProgramRun::RunPrologue() { RunRange(0, static_cast<int>(program_->num_in_prologue_)); }

void ProgramRun::Run(Parallel* parallel) {
  if (!program_->parts_.empty()) {
    for (const Program::Part& part : program_->parts_) RunPart(part, parallel);
    return;
  }
  RunRange(static_cast<int>(program_->num_in_prologue_), static_cast<int>(program_->num_in_main_));
}

void ProgramRun::RunPart(const Program::Part& part, Parallel* parallel) {
  if (!part.has_tiles) {
    RunRange(part.begin, part.end);
    return;
  }
  const int64_t count = part.num_tiles + part.has_rest();
  int64_t num_pieces = 1;
  if (parallel != nullptr) {
    num_pieces = std::min<int64_t>({count, 2 * parallel->num_threads(),
                                    static_cast<int64_t>(part.time / program_->thread_time_)});
    if (num_pieces < 2 || parallel->num_threads() < 2) num_pieces = 1;
  }
  const int64_t bytes = Rounded(part.inside_bytes);
  if (inside_.size() < bytes * num_pieces) inside_ = Buffer<char>(bytes * num_pieces);
  const auto run = [&](int64_t piece) {
    for (int64_t tile = count * piece / num_pieces; tile < count * (piece + 1) / num_pieces;
         ++tile) {
      RunTile(part, tile, inside_.data() + piece * bytes);
    }
  };
  if (num_pieces == 1) return run(0);
  parallel->Run(num_pieces, run);
}

void ProgramRun::RunTile(const Program::Part& part, int64_t tile, char* inside) const {
  const bool is_whole = tile < part.num_tiles;
  const int end = is_whole ? part.end : part.last;
  for (int i = is_whole ? part.begin : part.end; i < end; ++i) {
    Instruction instruction = instructions_[i];
    for (int k = 0; k < 4; ++k) {
      const Program::Operand& operand = program_->operands_[4 * i + k];
      char*& at = instruction.at[k];
      at = operand.is_inside ? inside + reinterpret_cast<int64_t>(at)
                             : at + tile * operand.tile_step;
    }
    instruction.run(instruction);
  }
}

bool ProgramRun::RunChecked() {
  constexpr int kPoison = 0xff;
  std::memset(arena_.data(), kPoison, arena_.size());
  const auto is_poison = [this](int64_t begin, int64_t end) {
    return std::all_of(arena_.data() + begin, arena_.data() + end,
                       [](char byte) { return byte == static_cast<char>(kPoison); });
  };
  bool is_right = true;
  auto part = program_->parts_.begin();
  for (int i = 0; i < static_cast<int>(program_->num_in_main_); ++i) {
    if (part != program_->parts_.end() && i == part->begin && part->has_tiles) {
      if (inside_.size() > 0) std::memset(inside_.data(), kPoison, inside_.size());
      RunPart(*part, nullptr);
      i = part->last - 1;
    } else {
      instructions_[i].run(instructions_[i]);
    }
    if (part != program_->parts_.end() && i == part->last - 1) ++part;
    // All that is not alive is still poison.
    int first = program_->turns_[i], last = first;
    const auto loop = program_->loop_of_instruction_.find(i);
    if (loop != program_->loop_of_instruction_.end()) {
      last = program_->loops_[loop->second].last_turn;
    }
    int64_t end = 0;
    std::vector<Program::Life> alive;
    for (const Program::Life& life : program_->lives_) {
      if (life.first <= last && first <= life.last) alive.push_back(life);
    }
    std::sort(alive.begin(), alive.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    for (const Program::Life& life : alive) {
      // Blocks of a loop's steps may have one place in turn.
      is_right = is_right && (first < last || end <= life.offset);
      is_right = is_right && (end >= life.offset || is_poison(end, life.offset));
      end = std::max(end, life.offset + life.bytes);
      if (life.last > last) continue;
      std::memset(arena_.data() + life.offset, kPoison, life.bytes);
    }
    is_right = is_right && is_poison(end, arena_.size());
  }
  return is_right;
}

}  // namespace tf_ti
