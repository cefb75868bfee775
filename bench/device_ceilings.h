// What the device can do, read in the same run as the work: copy, plain read, scattered reads.
#pragma once

#include <vector>

#include "device_lab.h"

namespace tamis::bench {

struct ScatteredRead {
  int64_t chunk = 0, bytes = 0;  // of one event's step
  double tb_s = 0;
  ReaderShape shape{};  // the fastest of kReaderShapes
};

struct DeviceCeilings {
  double copy_tb_s = 0, read_tb_s = 0;  // copy: bytes read plus bytes written
  double node_us = 0;                   // a graph node that does nothing to speak of
  std::vector<ScatteredRead> scattered;
};

Result<DeviceCeilings> measure_device_ceilings(DeviceLab& lab);

// The shape in which the device reads these pieces fastest.
Result<ReaderShape> best_shape(DeviceLab& lab, const std::vector<DevicePieces>& turns);

// One step: read what the turn reads.
DeviceContender reader(DeviceLab& lab, std::string name, std::vector<DevicePieces> turns, ReaderShape shape,
                       int64_t nodes);

Json to_json(const DeviceCeilings& ceilings);

}  // namespace tamis::bench
