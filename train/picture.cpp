// Draws a diagram of boxes from the rows of nn::summarize(), whose paths say which is inside which.

#include "train/picture.h"

#include <fmt/format.h>

#include <set>

#include "core/format.h"
#include "io/svg.h"
#include "nn/summary.h"

namespace mixtape::train {
namespace {

// The number of a dtype's color: f32 blue, f16 orange, bf16 green; all integers have the same.
int color_of(DType t) { return t == f32 ? 0 : t == f16 ? 1 : t == bf16 ? 2 : t == f64 ? 3 : 7; }

io::Box box_of(const nn::ModuleSummary& m, std::string_view outer) {
  std::string_view name = m.path;
  if (!outer.empty()) name.remove_prefix(outer.size() + 1);
  io::Box box{name.empty() ? m.type : fmt::format("{}  {}", name, m.type), {}, -1, {}};
  if (m.parameters > 0) box.note = fmt::format("{} parameters", m.parameters);
  if (!m.output) return box;
  box.color = color_of(m.dtype);
  box.note += fmt::format("{}{} {}", box.note.empty() ? "" : "   ", m.dtype, *m.output);
  return box;
}

// The box of row `i` with the following rows that are inside it; moves i past them.
io::Box box_at(const std::vector<nn::ModuleSummary>& rows, size_t& i, std::string_view outer) {
  const std::string& path = rows[i].path;
  io::Box box = box_of(rows[i++], outer);
  while (i < rows.size() && (path.empty() || rows[i].path.starts_with(path + ".")))
    box.inside.push_back(box_at(rows, i, path));
  return box;
}

}  // namespace

std::string picture_of(nn::ModuleBase& net, const std::function<void()>& run) {
  const std::vector<nn::ModuleSummary> rows = nn::summarize(net, run);
  io::BoxDiagram diagram{.title = rows[0].type};
  std::set<DType> dtypes;
  for (const nn::ModuleSummary& m : rows)
    if (m.output && dtypes.insert(m.dtype).second)
      diagram.legend.emplace_back(name(m.dtype), color_of(m.dtype));
  size_t i = 0;
  diagram.boxes.push_back(box_at(rows, i, ""));
  return io::to_svg(diagram);
}

}  // namespace mixtape::train
