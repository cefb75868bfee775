// A file under way: beside its target until it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tamis/status.h"

namespace tamis::io {

// Whatever ends it early, the destructor leaves nothing behind.
class Output {
 public:
  Output() = default;
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  Status open(const std::string& path);
  // Devices and pipes cannot be replaced: what is put is written to them at once.
  bool in_place() const { return beside_.empty(); }
  Status put(const void* data, int64_t count);
  // Writes what is held back, so that a full disk shows before commit().
  Status flush();
  // Gives the file its name.
  Status commit();

 private:
  Status open_beside(mode_t mode, bool keep_mode);
  Status write_all(const std::byte* data, int64_t count);

  static constexpr size_t kBuffer = 64 << 10;

  int fd_ = -1;
  std::string target_, beside_;  // no file beside: the target itself is open
  std::vector<std::byte> buffer_;
};

}  // namespace tamis::io
