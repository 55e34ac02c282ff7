// SPDX-License-Identifier: Apache-2.0
#include "ckpt/manifest.h"

#include <limits>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "support/error_of.h"

namespace sherd::ckpt {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using ManifestJson = nlohmann::ordered_json;

constexpr std::int64_t kManifestElements = 300'000;  // Of F32: two chunks.

PartManifest manifest_part() {
  PartManifest part;
  part.files = {
      {.name = "model-00000-000.safetensors", .bytes = 1'300'000},
      {.name = "empty.safetensors", .bytes = 0}};
  part.tensors = {
      {.section = "model",
       .name = "weight",
       .dtype = "F32",
       .shape = {1000, 1000},
       .range = {100, 100 + kManifestElements},
       .file = 0,
       .offset = 64,
       .checksums = {1, 0xfedcba9876543210}},
      {.section = "model",
       .name = "a \"name\" of \xc3\xa4",
       .dtype = "BF16",
       .shape = {},
       .range = {0, 1},
       .file = 0,
       .offset = 1'299'998,
       .checksums = {2}},
      {.section = "optimizer",
       .name = "weight",
       .dtype = "U8",
       .shape = {3, 0},
       .range = {0, 0},
       .file = 1,
       .offset = 0}};
  part.modules = {"body.1", "body.2"};
  part.tied = {{"head.weight", "table.weight"}};
  return part;
}

Manifest manifest_manifest() {
  return {
      .step = 1200,
      .world_size = 2,
      .values = {{"", "empty"}, {"data", "a\n\"b\" \xc3\xa4"}},
      .parts = {
          {.name = "part-00000.json", .bytes = 100, .checksum = 1},
          {.name = "part-00001.json", .bytes = 0, .checksum = ~0ULL}}};
}

std::string manifest_refused_part(const std::string& text) {
  return error_of([&] { (void)parse_part(text, "run/part-00007.json"); });
}

std::string manifest_refused(const std::string& text) {
  return error_of([&] { (void)parse_manifest(text, "run/checkpoint.json"); });
}

// A valid text, except for one value.
template <typename Described>
std::string manifest_with(
    const Described& described,
    const std::string& pointer,
    const ManifestJson& value) {
  auto json = ManifestJson::parse(to_json(described));
  json.at(ManifestJson::json_pointer(pointer)) = value;
  return json.dump();
}

template <typename Described>
std::string manifest_without(
    const Described& described, const std::string& key) {
  auto json = ManifestJson::parse(to_json(described));
  json.erase(key);
  return json.dump();
}

// Expects each of the values in that place to be refused, with an error that names path and field.
template <typename Described>
void manifest_expect_refused_by(
    std::string (*refusal)(const std::string&),
    const Described& described,
    const std::string& path,
    const std::string& pointer,
    const std::vector<ManifestJson>& values,
    const std::string& expected) {
  const auto field = pointer.substr(pointer.rfind('/') + 1);
  for (const auto& value : values) {
    EXPECT_THAT(
        refusal(manifest_with(described, pointer, value)),
        AllOf(
            StartsWith("[ckpt] " + path + ": "), HasSubstr(field + ": "),
            HasSubstr("expected " + expected), HasSubstr("found ")))
        << pointer << " " << value.dump().substr(0, 80);
  }
}

void manifest_expect_refused_part(
    const std::string& pointer,
    const std::vector<ManifestJson>& values,
    const std::string& expected) {
  manifest_expect_refused_by(
      manifest_refused_part, manifest_part(), "run/part-00007.json", pointer,
      values, expected);
}

void manifest_expect_refused(
    const std::string& pointer,
    const std::vector<ManifestJson>& values,
    const std::string& expected) {
  manifest_expect_refused_by(
      manifest_refused, manifest_manifest(), "run/checkpoint.json", pointer,
      values, expected);
}

const std::vector<ManifestJson>& manifest_no_counts() {
  static const std::vector<ManifestJson> kValues = {
      -1,      -0.0,         1.5,   2.0,   "1", true,
      nullptr, (1ULL << 63), ~0ULL, 1e300, {},  ManifestJson::array({1})};
  return kValues;
}

std::vector<ManifestJson> manifest_path_tricks() {
  return {
      "../x",
      "a/b",
      ".hidden",
      "",
      "..",
      ".",
      "/etc/passwd",
      R"(..\x)",
      R"(a\b)",
      std::string("a\0b", 3),
      std::string("\0", 1)};
}

TEST(Manifest, APartComesBackFromItsJson) {
  for (const auto& part : {manifest_part(), PartManifest{}}) {
    EXPECT_EQ(parse_part(to_json(part), "p"), part);
  }
}

TEST(Manifest, ComesBackFromItsJson) {
  const auto manifest = manifest_manifest();
  const Manifest plain{.values = {}, .parts = {{.name = "part-00000.json"}}};
  EXPECT_EQ(parse_manifest(to_json(manifest), "p"), manifest);
  EXPECT_EQ(parse_manifest(to_json(plain), "p"), plain);
}

TEST(Manifest, TruncatedJsonIsRefusedAndNamesTheByte) {
  const auto part = to_json(manifest_part());
  const auto manifest = to_json(manifest_manifest());
  // The last byte is a line feed.
  for (std::size_t size = 0; size + 1 < part.size(); ++size) {
    EXPECT_THAT(
        manifest_refused_part(part.substr(0, size)),
        AllOf(
            StartsWith("[ckpt] run/part-00007.json: expected JSON"),
            HasSubstr("at byte " + std::to_string(size + 1))));
  }
  for (std::size_t size = 0; size + 1 < manifest.size(); ++size) {
    EXPECT_THAT(
        manifest_refused(manifest.substr(0, size)),
        StartsWith("[ckpt] run/checkpoint.json: expected JSON"));
  }
}

TEST(Manifest, WhatIsNoObjectIsRefused) {
  for (const auto* text : {"[]", "1", "null", "\"format\""}) {
    EXPECT_THAT(
        manifest_refused_part(text),
        StartsWith("[ckpt] run/part-00007.json: expected an object, found"));
    EXPECT_THAT(
        manifest_refused(text),
        StartsWith("[ckpt] run/checkpoint.json: expected an object, found"));
  }
  manifest_expect_refused("/values", {1, "x", ManifestJson::array()}, "an obj");
  manifest_expect_refused(
      "/values", {{{"key", 1}}, {{"key", nullptr}}}, "texts alone");
  for (const auto* list : {"/files", "/tensors", "/tensors/0/shape"}) {
    manifest_expect_refused_part(
        list, {1, "x", ManifestJson::object(), nullptr}, "a list");
  }
}

TEST(Manifest, EveryFieldIsNeeded) {
  for (const auto* key :
       {"format", "version", "step", "world_size", "values", "parts", "xxh3"}) {
    EXPECT_THAT(
        manifest_refused(manifest_without(manifest_manifest(), key)),
        AllOf(
            StartsWith("[ckpt] run/checkpoint.json: "),
            HasSubstr(std::string("expected '") + key + "', found none")));
  }
  for (const auto* key : {"format", "version", "files", "tensors"}) {
    EXPECT_THAT(
        manifest_refused_part(manifest_without(manifest_part(), key)),
        AllOf(
            StartsWith("[ckpt] run/part-00007.json: "),
            HasSubstr(std::string("expected '") + key + "', found none")));
  }
}

TEST(Manifest, AnotherFormatOrVersionIsRefused) {
  const std::vector<ManifestJson> formats = {"", "Sherd checkpoint", "pt"};
  manifest_expect_refused_part("/format", formats, "sherd checkpoint");
  manifest_expect_refused("/format", formats, "sherd checkpoint");
  manifest_expect_refused("/format", {1, nullptr}, "a text");
  manifest_expect_refused_part("/version", {0, 2, 1ULL << 62}, "1, the one");
  manifest_expect_refused("/version", {0, 2, 1ULL << 62}, "1, the one");
}

TEST(Manifest, NamesThatLeadOutOfTheFolderAreRefused) {
  const auto* expected = "the name of a file in this folder";
  manifest_expect_refused_part(
      "/files/0/name", manifest_path_tricks(), expected);
  manifest_expect_refused("/parts/1/name", manifest_path_tricks(), expected);
}

TEST(Manifest, AFileThatComesTwiceIsRefused) {
  manifest_expect_refused_part(
      "/files/1/name", {manifest_part().files[0].name},
      "a name that comes once");
}

TEST(Manifest, ATensorThatComesTwiceInASectionIsRefused) {
  manifest_expect_refused_part(
      "/tensors/1/name", {"weight"}, "a name that comes once");
  manifest_expect_refused_part("/tensors/2/section", {1, nullptr}, "a text");
  auto part = manifest_part();
  part.tensors[2].section = "model";
  EXPECT_THAT(
      manifest_refused_part(to_json(part)),
      AllOf(
          HasSubstr("part-00007.json: tensor 2: name: "),
          HasSubstr("comes once")));
}

TEST(Manifest, ARangeOutsideItsTensorIsRefused) {
  manifest_expect_refused_part(
      "/tensors/0/end", {1'000'001, 99, (1ULL << 63) - 1},
      "a range inside the tensor");
  manifest_expect_refused_part("/tensors/2/end", {1}, "a range inside");
  EXPECT_THAT(
      manifest_refused_part(
          manifest_with(manifest_part(), "/tensors/0/begin", 300'101)),
      AllOf(HasSubstr("tensor 0: end: "), HasSubstr("inside the tensor")));
}

TEST(Manifest, APlaceOutsideItsFileIsRefused) {
  manifest_expect_refused_part(
      "/tensors/0/offset", {100'001, 1'300'001, (1ULL << 63) - 1},
      "a place inside the file");
  manifest_expect_refused_part("/tensors/2/offset", {1}, "a place inside");
  auto part = manifest_part();
  part.files[0].bytes = 1'299'999;
  EXPECT_THAT(
      manifest_refused_part(to_json(part)),
      HasSubstr("tensor 1: offset: expected a place inside the file"));
}

TEST(Manifest, AFileThatThePartHasNotIsRefused) {
  manifest_expect_refused_part(
      "/tensors/0/file", {2, 1ULL << 32, (1ULL << 63) - 1},
      "one of this part's files");
}

TEST(Manifest, ADtypeThatSafetensorsHasNotIsRefused) {
  manifest_expect_refused_part(
      "/tensors/0/dtype", {"", "f32", "F4", "float32"}, "one of safetensors'");
}

TEST(Manifest, AsManyChecksumsAsChunksAreNeeded) {
  const std::string sixteen = "0123456789abcdef";
  manifest_expect_refused_part(
      "/tensors/0/xxh3", {"", sixteen, sixteen + sixteen + sixteen},
      "a checksum for each MiB");
  manifest_expect_refused_part(
      "/tensors/2/xxh3", {sixteen}, "a checksum for each MiB");
  manifest_expect_refused("/parts/0/xxh3", {"", sixteen + sixteen}, "one che");
}

TEST(Manifest, ChecksumsAreSixteenDigitsEach) {
  const std::vector<ManifestJson> wrong = {
      "0",
      "0123456789abcde",
      "0123456789abcdeg",
      "+123456789abcdef",
      "-123456789abcdef",
      "0x23456789abcdef",
      " 123456789abcdef",
      "0123456789abcdef0"};
  manifest_expect_refused_part("/tensors/1/xxh3", wrong, "16 hexadecimal");
  manifest_expect_refused("/parts/0/xxh3", wrong, "16 hexadecimal");
}

TEST(Manifest, NumbersAreCounts) {
  const auto* expected = "a whole number of at least 0";
  for (const auto* pointer :
       {"/version", "/files/0/bytes", "/tensors/0/begin", "/tensors/0/end",
        "/tensors/0/file", "/tensors/0/offset"}) {
    manifest_expect_refused_part(pointer, manifest_no_counts(), expected);
  }
  for (const auto* pointer :
       {"/version", "/step", "/world_size", "/parts/0/bytes"}) {
    manifest_expect_refused(pointer, manifest_no_counts(), expected);
  }
}

TEST(Manifest, ANumberTooLargeForADoubleIsRefused) {
  EXPECT_THAT(
      manifest_refused(R"({"format":1e999})"),
      StartsWith("[ckpt] run/checkpoint.json: expected JSON, found a number"));
  EXPECT_THAT(
      manifest_refused_part(R"({"version":-1e999})"),
      StartsWith("[ckpt] run/part-00007.json: expected JSON, found a number"));
}

TEST(Manifest, AShapeThatCannotBeIsRefused) {
  manifest_expect_refused_part(
      "/tensors/0/shape",
      {ManifestJson::array({-1, 5}), ManifestJson::array({1.5}),
       ManifestJson::array({"4"}), ManifestJson::array({nullptr}),
       ManifestJson::array({~0ULL}), ManifestJson::array({1ULL << 57}),
       ManifestJson::array({1ULL << 32, 1ULL << 32}),
       ManifestJson::array({1ULL << 56, 1ULL << 56, 0}),
       ManifestJson::array({3, 1ULL << 55})},
      "sizes of a tensor that can be");
}

TEST(Manifest, DeepJsonIsRefusedAtOnce) {
  const std::string bomb(1'000'000, '[');
  EXPECT_THAT(
      manifest_refused(bomb),
      StartsWith("[ckpt] run/checkpoint.json: expected at most 8 levels"));
  EXPECT_THAT(
      manifest_refused_part(R"({"files":)" + bomb),
      StartsWith("[ckpt] run/part-00007.json: expected at most 8 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += R"({"a":)";
  }
  EXPECT_THAT(manifest_refused(objects), HasSubstr("at most 8 levels"));
}

TEST(Manifest, HasAPartForEachRank) {
  manifest_expect_refused(
      "/parts", {ManifestJson::array()}, "one for each rank");
  auto manifest = manifest_manifest();
  for (const int world_size : {1, 3}) {
    manifest.world_size = world_size;
    EXPECT_THAT(
        manifest_refused(to_json(manifest)),
        AllOf(
            StartsWith("[ckpt] run/checkpoint.json: parts: "),
            HasSubstr("one for each rank")));
  }
  manifest_expect_refused(
      "/world_size", {0, 1ULL << 31, 1ULL << 32}, "a number of ranks");
}

TEST(Manifest, NoDamagedBitChangesAValue) {
  const auto manifest = manifest_manifest();
  const auto text = to_json(manifest);
  for (std::size_t at = 0; at < text.size() * 8; ++at) {
    auto damaged = text;
    damaged[at / 8] = static_cast<char>(damaged[at / 8] ^ (1 << at % 8));
    try {
      // Where a bit changes only upper case or the kind of space, the result is the same.
      EXPECT_EQ(parse_manifest(damaged, "path"), manifest) << at;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("[ckpt] path: "));
    }
  }
}

TEST(Manifest, PartsAreNamedByRank) {
  EXPECT_EQ(part_name(0), "part-00000.json");
  EXPECT_EQ(part_name(3), "part-00003.json");
  EXPECT_EQ(part_name(99'999), "part-99999.json");
  EXPECT_EQ(part_name(100'000), "part-100000.json");
}

TEST(Manifest, FoldersAreNamedByStep) {
  const auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(folder_name(0), "step-0");
  EXPECT_EQ(folder_name(100), "step-100");
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{7}, std::int64_t{100}, most}) {
    EXPECT_EQ(step_of(folder_name(step)), step);
  }
  for (const auto* name :
       {"", "step", "step-", "step-007", "step-00", "step--1", "step-+1",
        "step- 1", "step-1 ", "step-1x", "step-0x1", "step-1.5", "Step-1",
        ".saving-step-1", "step-99999999999999999999",
        "step-9223372036854775808"}) {
    EXPECT_EQ(step_of(name), -1) << name;
  }
}

}  // namespace
}  // namespace sherd::ckpt
