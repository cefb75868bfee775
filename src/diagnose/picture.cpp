#include "diagnose/picture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "diagnose/svg.h"

namespace tamis::diagnose {
namespace {

// Apart for the common kinds of colour blindness and in grey: the "high contrast" scheme of Paul Tol, "Colour
// Schemes" (SRON technical note, 2021).
struct Way {
  uint8_t bit;
  const char *name, *colour, *meaning;
};
constexpr Way kWays[] = {{kDynamic, "dynamic", "#004488", "dynamic candidates"},
                         {kWindow, "window", "#DDAA33", "window"},
                         {kSink, "sink", "#BB5566", "sink"}};
constexpr const char *kUnseen = "#DDDDDD", *kInk = "#222222", *kFaint = "#666666", *kRule = "#AAAAAA";

// Pixels. The legend needs kMinWidth even where the cells do not.
constexpr int64_t kLeft = 84, kRight = 28, kTop = 94, kLabel = 22, kGap = 14, kFoot = 52, kMinWidth = 860;

// Where the bands lie. Cells are whole pixels, so that those of one map look alike.
struct Frame {
  int64_t cell_width, cell_height, width, band, bottom;

  explicit Frame(const Grid& grid) {
    const int64_t rows = grid.rows.size();
    cell_width = std::max<int64_t>(1, 1024 / std::max<int64_t>(1, grid.columns));
    cell_height = std::clamp<int64_t>(256 / std::max<int64_t>(1, rows), 2, 20);
    width = cell_width * grid.columns;
    band = cell_height * rows;
    bottom = top(grid.heads - 1) + band;
  }
  int64_t top(int64_t head) const { return kTop + head * (kLabel + band + kGap) + kLabel; }
  double x(const Grid& grid, int64_t token) const {
    const double cells = static_cast<double>(token) / static_cast<double>(grid.fold.tokens);
    return static_cast<double>(kLeft) + std::round(10 * static_cast<double>(cell_width) * cells) / 10;
  }
  svg::Box box(int64_t head) const {  // round the band, clear of its cells
    return {kLeft - 0.5, static_cast<double>(top(head)) - 0.5, static_cast<double>(width) + 1,
            static_cast<double>(band) + 1};
  }
};

// A way's share of the height of a cell: 1 alone, 1/2 over one other way, 1/3 over two; 0: not reached.
int parts(uint8_t cell, const Way& way) {
  return (cell & way.bit) ? 1 + std::popcount(static_cast<unsigned>(cell & (way.bit - 1))) : 0;
}

// All runs of cells of which `way` gets 1/n of the height, at the bottom: one path of thick horizontal
// strokes, in cell units, because a rectangle for each run would be six times as long.
void runs(std::string* out, const Grid& grid, int64_t head, const Way& way, int n) {
  std::string path;
  for (int64_t r = 0; r < static_cast<int64_t>(grid.rows.size()); ++r) {
    const uint8_t* cells = grid.row(head, r);
    int64_t pen = -1;  // where the previous run of this row ended
    for (int64_t x = 0; x < grid.columns; ++x) {
      if (parts(cells[x], way) != n) continue;
      const int64_t begin = x;
      while (x < grid.columns && parts(cells[x], way) == n) ++x;
      if (pen < 0)
        svg::write(&path, "M", begin, " ", r, "h", x - begin);
      else
        svg::write(&path, "m", begin - pen, " 0h", x - begin);
      pen = x;
    }
  }
  if (path.empty()) return;
  const double height = 1.0 / n;
  svg::write(out, "<path class=\"", way.name, "\" stroke=\"", way.colour, "\" stroke-width=\"", height,
             "\" transform=\"translate(0 ", 1 - height / 2, ")\" d=\"", path, "\"/>\n");
}

// The right edge of what each row may see, as path data from the top of the band to its bottom.
std::string edge_of(const Grid& grid, const Frame& frame, int64_t top) {
  std::string edge;
  double drawn = -1;
  int64_t y = top;
  for (const RowBin& row : grid.rows) {
    const double x = frame.x(grid, row.visible);
    if (drawn < 0)
      svg::write(&edge, x, " ", y);
    else if (x != drawn)
      svg::write(&edge, "V", y, "H", x);
    drawn = x;
    y += frame.cell_height;
  }
  return edge + svg::join("V", y);
}

// Where the rows of requests begin, or a few row numbers when there is one request.
void row_ticks(std::string* out, const Grid& grid, const Frame& frame, int64_t top) {
  const auto tick = [&](int64_t r, std::string_view text) {
    svg::label(out, kLeft - 6, top + r * frame.cell_height + std::min<int64_t>(frame.cell_height, 12) / 2 + 4,
               text, {.size = 11, .anchor = "end", .colour = kFaint});
  };
  const int64_t rows = grid.rows.size();
  if (grid.rows.front().request == grid.rows.back().request) {
    for (int64_t r : {int64_t{0}, rows / 2, rows - 1})
      if (r == 0 || r * frame.cell_height >= 14 * (r == rows / 2 ? 1 : 2))
        tick(r, svg::join(grid.rows[r].begin));
    return;
  }
  int64_t free = 0;  // first pixel without text
  for (int64_t r = 0; r < rows; ++r) {
    if (r > 0 && grid.rows[r].request == grid.rows[r - 1].request) continue;
    const int64_t y = r * frame.cell_height;
    if (r > 0) svg::stroke(out, svg::join("M", kLeft - 5, " ", top + y, "h5"), kRule);
    if (y < free) continue;
    tick(r, svg::join("req ", grid.rows[r].request));
    free = y + 13;
  }
}

void band(std::string* out, const Grid& grid, const Frame& frame, bool causal, int64_t head) {
  const int64_t top = frame.top(head);
  const double share =
      grid.visible > 0 ? 100.0 * static_cast<double>(grid.selected[head]) / static_cast<double>(grid.visible)
                       : 0;
  svg::label(
      out, kLeft, top - 6,
      svg::join("index head ", head, ": ", std::round(10 * share) / 10, " % of the visible tokens selected"));
  const std::string edge = edge_of(grid, frame, top);
  svg::fill(out, frame.box(head), kUnseen);
  svg::write(out, "<path fill=\"#FFFFFF\" d=\"M", kLeft, " ", top, "L", edge, "H", kLeft, "Z\"/>\n");
  svg::write(out, "<g fill=\"none\" shape-rendering=\"crispEdges\" transform=\"translate(", kLeft, " ", top,
             ") scale(", frame.cell_width, " ", frame.cell_height, ")\">\n");
  for (const Way& way : kWays)
    for (int n : {1, 2, 3}) runs(out, grid, head, way, n);
  svg::write(out, "</g>\n");
  if (frame.cell_height >= 8) {  // room for a line between rows, so that split cells do not run together
    std::string lines;
    for (size_t r = 1; r < grid.rows.size(); ++r)
      svg::write(&lines, "M", kLeft, " ", top + static_cast<int64_t>(r) * frame.cell_height, "h",
                 frame.width);
    if (!lines.empty()) svg::stroke(out, lines, "#FFFFFF");
  }
  if (causal) {  // cased in white, to be seen on dark cells
    svg::write(out, "<path fill=\"none\" stroke=\"#FFFFFF\" stroke-width=\"3\" d=\"M", edge, "\"/>\n");
    svg::write(out, "<path class=\"causal\" fill=\"none\" stroke=\"", kInk, "\" d=\"M", edge, "\"/>\n");
  }
  svg::outline(out, frame.box(head), kRule);
  row_ticks(out, grid, frame, top);
}

// Token numbers under the last band, about eight of them, at a round distance.
void token_axis(std::string* out, const Grid& grid, const Frame& frame) {
  int64_t step = 1;
  while (step * 10 < grid.tokens) step *= 2;
  const int64_t y = frame.bottom;
  for (int64_t t = 0; t <= grid.tokens; t += step) {
    svg::stroke(out, svg::join("M", frame.x(grid, t), " ", y + 1, "v5"), kFaint);
    svg::label(out, std::lround(frame.x(grid, t)), y + 19, svg::join(t),
               {.size = 11, .anchor = "middle", .colour = kFaint});
  }
  svg::label(out, kLeft + frame.width / 2, y + 36, "token", {.anchor = "middle"});
}

// Only what the problem asks for: a colour that cannot occur would be looked for in vain.
void legend(std::string* out, const Problem& problem) {
  const bool asked[] = {problem.candidates.form != CandidateForm::kNone, problem.mask.window > 0,
                        problem.mask.sink > 0};
  constexpr double kY = 62, kSide = 14;
  double x = kLeft;
  const auto entry = [&](std::string_view text) {
    svg::label(out, std::lround(x) + 20, 74, text);
    x += 46 + 6.6 * static_cast<double>(text.size());  // about the width of the text
  };
  std::vector<const Way*> ways;
  for (int i = 0; i < 3; ++i)
    if (asked[i]) ways.push_back(&kWays[i]);
  for (const Way* way : ways) {
    svg::fill(out, {x, kY, kSide, kSide}, way->colour);
    entry(way->meaning);
  }
  if (ways.size() > 1) {
    svg::fill(out, {x, kY, kSide, kSide / 2}, ways[0]->colour);
    svg::fill(out, {x, kY + kSide / 2, kSide, kSide / 2}, ways[1]->colour);
    entry("reached in several ways: split");
  }
  if (problem.mask.causal) {
    svg::stroke(out, svg::join("M", x + 7, " ", kY - 1, "v", kSide + 2), kInk);
    entry("causal edge");
  }
  svg::fill(out, {x, kY, kSide, kSide}, kUnseen);
  entry(problem.mask.causal ? "future or no token" : "no token");
}

// What a cell stands for.
std::string caption(const Grid& grid, int64_t block) {
  const Fold& fold = grid.fold;
  const int64_t blocks = std::max<int64_t>(1, fold.tokens / block);
  std::string text =
      blocks > 1 || fold.queries > 1 || fold.requests > 1 ? "Folded to fit. A cell: " : "A cell: ";
  if (blocks > 1) svg::write(&text, blocks, " blocks of ");
  svg::write(&text, svg::counted(block, "token", "tokens"), " by ");
  if (fold.requests > 1)
    svg::write(&text, "all queries of ", fold.requests, " requests");
  else
    svg::write(&text, svg::counted(fold.queries, "query", "queries"));
  return text + ", coloured when at least one token of it enters a softmax.";
}

}  // namespace

std::string draw(const Grid& grid, const Problem& problem, int64_t block) {
  const Frame frame(grid);
  const bool blank = grid.rows.empty() || grid.columns == 0;
  const int64_t width = kLeft + std::max(kMinWidth, frame.width) + kRight;
  const int64_t height = blank ? kTop + kLabel : frame.bottom + kFoot;
  const std::string title =
      svg::join("Which tokens enter the softmax: ", svg::counted(grid.queries, "query", "queries"), " of ",
                svg::counted(grid.requests, "request", "requests"), ", up to ",
                svg::counted(grid.tokens, "token", "tokens"));
  std::string out;
  svg::write(&out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" font-family=\"sans-serif\" width=\"",
             width, "\" height=\"", height, "\" viewBox=\"0 0 ", width, " ", height, "\">\n<title>", title,
             "</title>\n");
  svg::fill(&out, {0, 0, static_cast<double>(width), static_cast<double>(height)}, "#FFFFFF");
  svg::label(&out, kLeft, 28, title, {.size = 17});
  if (blank) {
    svg::label(&out, kLeft, 60, "There is nothing to draw.");
    return out + "</svg>\n";
  }
  svg::label(&out, kLeft, 48, caption(grid, block), {.colour = kFaint});
  legend(&out, problem);
  for (int64_t head = 0; head < grid.heads; ++head) band(&out, grid, frame, problem.mask.causal, head);
  token_axis(&out, grid, frame);
  const int64_t middle = (frame.top(0) + frame.bottom) / 2;
  svg::label(&out, 22, middle, "query row",
             {.anchor = "middle", .extra = svg::join(" transform=\"rotate(-90 22 ", middle, ")\"").c_str()});
  return out + "</svg>\n";
}

}  // namespace tamis::diagnose
