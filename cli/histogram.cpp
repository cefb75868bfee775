#include "histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "io/json_text.h"
#include "tamis/io.h"

namespace tamis::cli {
namespace {

constexpr std::streamsize kMostBytes = 64 << 20;  // of a histogram

Status bad_file(const std::string& path, const std::string& what) {
  return {Code::kIoError, fmt::format("{}: {}", path, what)};
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view blank = " \t\r";
  for (size_t at = line.find_first_not_of(blank); at < line.size(); at = line.find_first_not_of(blank, at)) {
    const size_t end = std::min(line.find_first_of(blank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

Status add_lines(const std::string& path, std::string_view text, std::vector<LengthWeight>* lengths) {
  const size_t before = lengths->size();
  for (int64_t n = 1; !text.empty(); ++n) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const std::optional<int64_t> length = number(words[0]),
                                 count = words.size() == 2 ? number(words[1]) : std::nullopt;
    if (!length || !count)
      return bad_file(path, fmt::format("line {} is not `length count`, two integers", n));
    lengths->push_back({*length, *count});
  }
  if (lengths->size() == before) return bad_file(path, "no case file, and holds no line `length count`");
  return {};
}

Status add_json(const std::string& path, std::string_view text, std::vector<LengthWeight>* lengths) {
  const Json object = io::parse_json(text);
  if (!object.is_object()) return bad_file(path, "is not one JSON object {\"length\": count, ...}");
  for (const auto& [key, count] : object.items()) {
    const std::optional<int64_t> length = number(key);
    // Larger unsigned numbers would wrap to negative ones.
    const bool fits =
        count.is_number_integer() && (!count.is_number_unsigned() || count.get<uint64_t>() <= INT64_MAX);
    if (!length || !fits) return bad_file(path, "holds a member that is not \"length\": count, two integers");
    lengths->push_back({*length, count.get<int64_t>()});
  }
  return {};
}

Status add_case(const std::string& path, LengthOf of, std::vector<LengthWeight>* lengths) {
  const Result<io::Case> found = io::read_case(path);
  if (!found.ok()) return found.status();
  const Result<std::vector<int64_t>> rows = row_lengths(found->problem, of);
  if (!rows.ok()) return rows.status();
  for (const int64_t length : *rows) lengths->push_back({length, 1});
  return {};
}

}  // namespace

Status add_lengths(const std::string& path, LengthOf of, std::vector<LengthWeight>* lengths) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return bad_file(path, std::generic_category().message(errno));
  // A case file begins with its header's length, 8 bytes of which the last are zero; no text holds a zero.
  char first[8];
  file.read(first, sizeof first);
  if (std::memchr(first, 0, static_cast<size_t>(file.gcount())) != nullptr)
    return add_case(path, of, lengths);
  std::string text(first, static_cast<size_t>(file.gcount()));
  for (char piece[1 << 16]; file.good();) {
    file.read(piece, sizeof piece);
    text.append(piece, static_cast<size_t>(file.gcount()));
    if (std::ssize(text) > kMostBytes)
      return bad_file(path, "is longer than 64 MiB, too long for a histogram");
  }
  if (file.bad()) return bad_file(path, "cannot be read");
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at != text.npos && text[at] == '{' ? add_json(path, text, lengths) : add_lines(path, text, lengths);
}

}  // namespace tamis::cli
