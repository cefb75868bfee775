// Records: keys of the schema, derived figures, and the way through a file.
#include "bench/record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "bench/environment.h"
#include "support/folder.h"

namespace tamis::bench {
namespace {

Record sample_record() {
  Series series{.name = "cpu.some", .us = {4, 2, 3, 1}, .warmup = 7, .whole_us = 10, .note = "why"};
  Reading r = reading_of(series);
  r.description = {{"dtype", "bf16"}};
  r.bytes = 4000000;
  r.flops = 8000000;
  r.ceiling = "cpu.some.reader";
  r.ceiling_us = 1.5;
  r.max_error = 0.25;
  r.checked_rows = 32;
  r.more["overlap_us"] = -1.0;
  Record record{.environment = environment("plain", 2),
                .readings = {r, reading_of({.name = "bare", .us = {1}, .note = {}})},
                .skipped = {}};
  record.ceilings = {{"read_tb_s", 0.03}};
  record.skipped.push_back({"cpu.other", "no file"});
  return record;
}

struct File {
  void write(const std::string& text) const { std::ofstream(path) << text; }
  const testing::TempFolder folder;
  const std::string path = folder / "record.json";
};

TEST(Record, HasEveryKeyOfTheSchema) {
  const Json json = to_json(sample_record());
  for (const std::string& key : record_keys()) EXPECT_TRUE(json.contains(key)) << key;
  for (const Json& r : json["readings"])
    for (const std::string& key : reading_keys()) EXPECT_TRUE(r.contains(key)) << key;
  EXPECT_EQ(json["gpu"], nullptr);
  EXPECT_TRUE(json["cpu"]["model"].is_string());
  EXPECT_GT(json["cpu"]["cores"].get<int>(), 0);
  EXPECT_EQ(json["threads"], 2);
}

TEST(Record, WorksOutRatesAndFractions) {
  const Json json = to_json(sample_record());
  const Json& r = json["readings"][0];
  EXPECT_EQ(r["median_us"], 2);
  EXPECT_DOUBLE_EQ(r["wall_us"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(r["tb_s"].get<double>(), 2);  // 4 MB in 2 us
  EXPECT_DOUBLE_EQ(r["tflop_s"].get<double>(), 4);
  EXPECT_DOUBLE_EQ(r["fraction_of_ceiling"].get<double>(), 0.75);
  EXPECT_EQ(r["overlap_us"], -1.0);
  EXPECT_EQ(r["peer"], "");
  EXPECT_EQ(r["note"], "why");
  const Json& bare = json["readings"][1];
  for (const char* key : {"tb_s", "tflop_s", "fraction_of_ceiling", "ceiling", "max_error"})
    EXPECT_TRUE(bare[key].is_null()) << key;
}

TEST(Record, SurvivesAFile) {
  const File file;
  const Json json = to_json(sample_record());
  ASSERT_TRUE(write_record(file.path, json).ok());
  const Result<Json> back = read_record(file.path);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->dump(), json.dump());  // order of keys too
}

TEST(Record, CannotBeWrittenNowhere) {
  const Status s = write_record(testing::TempFolder() / "no/such/folder/x.json", Json::object());
  EXPECT_EQ(s.code(), Code::kIoError);
}

TEST(Record, RefusesWhatIsNoRecord) {
  const File file;
  const auto refused = [&](const std::string& text) {
    file.write(text);
    return read_record(file.path).status().code() == Code::kIoError;
  };
  EXPECT_EQ(read_record(file.path).status().code(), Code::kIoError);  // there is none yet
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("[1, 2]"));
  EXPECT_TRUE(refused("{\"schema\": 1"));
  const Json good = to_json(sample_record());
  EXPECT_FALSE(refused(good.dump()));
  for (const std::string& key : record_keys()) {
    Json less = good;
    less.erase(key);
    EXPECT_TRUE(refused(less.dump())) << key;
  }
  for (const std::string& key : reading_keys()) {
    Json less = good;
    less["readings"][0].erase(key);
    EXPECT_TRUE(refused(less.dump())) << key;
  }
  EXPECT_TRUE(refused(good.dump() + std::string(1, '\0')));
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_TRUE(refused("{\"schema\": " + deep + good.dump().replace(0, 1, ", ")));
  Json other = good;
  other["schema"] = kSchema + 1;
  EXPECT_TRUE(refused(other.dump()));
  other = good;
  other["readings"] = 3;
  EXPECT_TRUE(refused(other.dump()));
  other = good;
  other["readings"][0]["median_us"] = "fast";
  EXPECT_TRUE(refused(other.dump()));
}

}  // namespace
}  // namespace tamis::bench
