// Just enough of an XML and SVG reader to judge the pictures of draw_map.
#pragma once

#include <cctype>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tamis::testing {

inline size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Checks one tag without its brackets: a name, then attributes with quoted values, each name once.
inline bool good_tag(const std::string& tag) {
  size_t i = 0;
  const auto name = [&] {
    const size_t begin = i;
    while (i < tag.size() && (std::isalnum(static_cast<unsigned char>(tag[i])) || tag[i] == '-')) ++i;
    return tag.substr(begin, i - begin);
  };
  std::set<std::string> seen;
  if (name().empty()) return false;
  while (i < tag.size() && tag[i] == ' ') {
    ++i;
    const std::string attribute = name();
    if (attribute.empty() || !seen.insert(attribute).second) return false;
    if (tag.compare(i, 2, "=\"") != 0) return false;
    const size_t end = tag.find('"', i + 2);
    if (end == std::string::npos || tag.substr(i, end - i).find_first_of("<&") != std::string::npos)
      return false;
    i = end + 1;
  }
  return i == tag.size();
}

// What is wrong with an XML document that uses neither comments, entities nor declarations; empty: nothing.
inline std::string xml_fault(const std::string& xml) {
  std::vector<std::string> open;
  if (xml.find('&') != std::string::npos) return "a bare &";
  size_t at = 0, roots = 0;
  while (at < xml.size()) {
    const size_t begin = xml.find('<', at);
    const std::string between = xml.substr(at, begin == std::string::npos ? begin : begin - at);
    if (between.find('>') != std::string::npos) return "a bare >";
    if (open.empty() && between.find_first_not_of(" \n") != std::string::npos) return "text outside the root";
    if (begin == std::string::npos) break;
    const size_t end = xml.find('>', begin);
    if (end == std::string::npos) return "an open bracket";
    std::string tag = xml.substr(begin + 1, end - begin - 1);
    at = end + 1;
    if (!tag.empty() && tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "</" + tag.substr(1) + "> closes nothing";
      open.pop_back();
      continue;
    }
    const bool alone = !tag.empty() && tag.back() == '/';
    if (alone) tag.pop_back();
    if (!good_tag(tag)) return "a bad tag: " + tag;
    if (open.empty()) ++roots;
    if (!alone) open.push_back(tag.substr(0, tag.find(' ')));
  }
  if (!open.empty()) return "<" + open.back() + "> stays open";
  return roots == 1 ? "" : "not one root";
}

using Cells = std::set<std::pair<int, int>>;  // (row, column)

// The value of an attribute of a tag, or "".
inline std::string attribute(const std::string& tag, const std::string& name) {
  const size_t at = tag.find(" " + name + "=\"");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 3;
  return tag.substr(begin, tag.find('"', begin) - begin);
}

// The cells under the horizontal strokes of a path such as "M0 1h2m3 0h1M0 2h1".
inline Cells cells_of_path(const std::string& d) {
  Cells cells;
  const char* p = d.c_str();
  int row = 0, column = 0;
  const auto number = [&] {
    char* end = nullptr;
    const int n = static_cast<int>(std::strtol(p, &end, 10));
    p = end;
    return n;
  };
  while (*p) {
    const char command = *p++;
    const int first = number();
    if (command == 'h') {
      for (int i = 0; i < first; ++i) cells.insert({row, column++});
    } else if (command == 'm') {
      column += first;
      row += number();
    } else if (command == 'M') {
      column = first;
      row = number();
    } else {
      return {};
    }
  }
  return cells;
}

// Cells of one way in one band, with the share of the height it gets there: "1", "0.5", ...; "" for any
// share.
inline Cells cells_of(const std::string& svg, int band, const std::string& way,
                      const std::string& share = "") {
  size_t begin = 0;
  for (int i = 0; i <= band; ++i) begin = svg.find("<g ", begin + 1);
  if (begin == std::string::npos) return {};
  const std::string group = svg.substr(begin, svg.find("</g>", begin) - begin);
  Cells cells;
  for (size_t at = group.find("<path"); at != std::string::npos; at = group.find("<path", at + 1)) {
    const std::string tag = group.substr(at, group.find('>', at) - at);
    if (attribute(tag, "class") != way || (!share.empty() && attribute(tag, "stroke-width") != share))
      continue;
    cells.merge(cells_of_path(attribute(tag, "d")));
  }
  return cells;
}

}  // namespace tamis::testing
