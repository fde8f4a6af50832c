#pragma once
// The decoder of a kernel: from the text of PTX to Code. Functions are inlined.

#include <unordered_map>

#include "emulator/ptx/text.h"

namespace mixtape::ptx {

struct Operand {
  std::string_view text = {}, also = {};  // also: the predicate of d|p
  bool negated = false, address = false;
  int64_t offset = 0;                        // added to an address
  std::vector<std::string_view> parts = {};  // a and b of {a, b}
};

class Decoder {
 public:
  Decoder(Module& module, const std::string& name);
  std::unique_ptr<Kernel> result() { return std::make_unique<Kernel>(std::move(kernel_)); }

 private:
  struct Registers {  // one declaration
    int width;
    bool many;
  };
  struct Scope {
    std::map<std::string_view, Registers> declared;
    std::unordered_map<std::string_view, Slot> slots;
    std::map<std::string_view, Module::Variable> variables;
    bool function = false;  // outer names are not visible
  };
  struct Found {
    Slot slot;
    int width;
  };

  void enter(bool function = false) { scopes_.emplace_back().function = function; }
  void leave() { scopes_.pop_back(); }

  void head(std::string_view text);
  void body(std::string_view text, int function);
  void statement(std::string_view text, int function);
  uint64_t share(int bytes, int alignment);
  void registers(const std::vector<std::string_view>& t);
  void call(std::span<const std::string_view> t, std::string_view text);
  void place_registers();
  void finish();

  std::optional<Found> find(std::string_view name, bool is_result = false);
  std::optional<Module::Variable> variable(std::string_view name);

  Slot constant(uint64_t bits, int width);
  std::optional<uint64_t> literal(std::string_view text, int width);
  Slot source(const Operand& o, Width width);
  Slot result(const Operand& o, Width width);

  // (instructions.cpp)
  static size_t read_parts(std::span<const std::string_view> t, size_t i, Operand& o);
  static std::vector<Operand> operands(std::span<const std::string_view> t);
  void instruction(const std::vector<std::string_view>& t, std::string_view text, int function);
  bool flow(Code& c, std::string_view name, const std::vector<Operand>& o, int function);
  bool formed(Code& c, std::string_view name, const std::vector<Operand>& o);
  void form_operand(Code& c, char kind, const Operand& o, std::vector<Slot>& slots);
  bool address(Code& c, const Operand& o, int k);
  static Space space_of(std::string_view name);
  bool load_or_store(Code& c, std::string_view kind, std::string_view type,
                     const std::vector<Operand>& o);
  bool memory(Code& c, std::string_view name, const std::vector<Operand>& o);
  void list(Code& c, const Operand& o, bool are_results = false, Width width = 4);
  void meet(Code& c, Slot mask);
  bool move(Code& c, std::string_view name, const std::vector<Operand>& o);
  bool together(Code& c, std::string_view name, const std::vector<Operand>& o);
  bool plain(Code& c, std::string_view name, const std::vector<Operand>& o);

  static constexpr uint64_t dynamic_shared = 0x5eed'd15c'0000'0001;  // no number in any kernel
  using Label = std::pair<int, std::string_view>;

  Module& module_;
  Kernel kernel_;
  std::vector<Scope> scopes_;
  struct Life {
    int width;
    int32_t first, last;
  };
  static constexpr int32_t nowhere = INT32_MAX / 2;
  std::vector<Life> lives_;
  size_t slots_in_lists_ = 0;
  std::map<std::string_view, Module::Variable> parameters_;
  std::map<std::string_view, uint64_t> shared_;
  std::map<std::pair<uint64_t, int>, Slot> constants_;
  std::map<Label, int32_t> labels_;
  std::map<Label, std::vector<std::string_view>> tables_;
  std::vector<std::pair<size_t, Label>> branches_, switches_;
  std::vector<size_t> late_addresses_;
  std::string_view last_label_;
  int dynamic_alignment_ = 128;  // of shared memory
  int functions_ = -1, file_ = 0, line_ = 0;
};

}  // namespace mixtape::ptx
