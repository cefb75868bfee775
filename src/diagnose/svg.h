// The few words of SVG that a picture needs, appended to a string.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace tamis::diagnose::svg {

inline void put(std::string* out, std::string_view text) { *out += text; }
inline void put(std::string* out, int64_t n) { *out += std::to_string(n); }
// Not through a stream: its locale may write decimal commas.
inline void put(std::string* out, double x) {
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, x, std::chars_format::general, 7).ptr);
}

template <class... Parts>
void write(std::string* out, const Parts&... parts) {
  (put(out, parts), ...);
}

template <class... Parts>
std::string join(const Parts&... parts) {
  std::string out;
  write(&out, parts...);
  return out;
}

// "1 query", "2 queries".
inline std::string counted(int64_t n, const char* one, const char* many) {
  return join(n, " ", n == 1 ? one : many);
}

struct TextStyle {
  int64_t size = 12;
  const char* anchor = "start";  // or middle, end
  const char* colour = "#222222";
  const char* extra = "";  // more attributes
};

// `text` must hold no markup characters.
inline void label(std::string* out, int64_t x, int64_t y, std::string_view text,
                  const TextStyle& style = {}) {
  write(out, "<text x=\"", x, "\" y=\"", y, "\" font-size=\"", style.size, "\" text-anchor=\"", style.anchor,
        "\" fill=\"", style.colour, "\"", style.extra, ">", text, "</text>\n");
}

struct Box {
  double x, y, width, height;
};

inline void fill(std::string* out, const Box& box, const char* colour) {
  write(out, "<rect x=\"", box.x, "\" y=\"", box.y, "\" width=\"", box.width, "\" height=\"", box.height,
        "\" fill=\"", colour, "\"/>\n");
}

inline void outline(std::string* out, const Box& box, const char* colour) {
  write(out, "<rect x=\"", box.x, "\" y=\"", box.y, "\" width=\"", box.width, "\" height=\"", box.height,
        "\" fill=\"none\" stroke=\"", colour, "\"/>\n");
}

inline void stroke(std::string* out, std::string_view path, const char* colour) {
  write(out, "<path fill=\"none\" stroke=\"", colour, "\" d=\"", path, "\"/>\n");
}

}  // namespace tamis::diagnose::svg
