// SPDX-License-Identifier: Apache-2.0
//
// The first byte chooses a part or a manifest, and how the rest is used: as the JSON itself, or as
// a recipe for valid JSON, whose bytes or values are then damaged. Only Error may be thrown, naming
// the path. What is read must be the same when it is written again, and its numbers must fit each
// other.
#include "ckpt/manifest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "base/check.h"
#include "ckpt/safetensors.h"
#include "support/fuzz_bytes.h"

namespace sherd::ckpt {
namespace {

using test::FuzzBytes;

using Json = nlohmann::ordered_json;

void check_promises(const PartManifest& part) {
  for (const auto& tensor : part.tensors) {
    const auto& file = part.files.at(static_cast<std::size_t>(tensor.file));
    const auto numel = numel_of(tensor.shape);
    SHERD_ASSERT(
        numel >= 0 && tensor.range.begin >= 0 &&
            tensor.range.begin <= tensor.range.end && tensor.range.end <= numel,
        "range");
    SHERD_ASSERT(
        tensor.offset >= 0 && tensor.offset + bytes_of(tensor) <= file.bytes,
        "place");
    SHERD_ASSERT(
        std::ssize(tensor.checksums) == chunks_of(bytes_of(tensor)), "sums");
  }
}

void check_promises(const Manifest& manifest) {
  SHERD_ASSERT(
      manifest.step >= 0 && manifest.world_size == std::ssize(manifest.parts),
      "numbers");
}

// Returns whether the text was read.
template <auto parse_text>
bool check_text(const std::string& text) {
  try {
    const auto read = parse_text(text, "fuzz");
    check_promises(read);
    SHERD_ASSERT(parse_text(to_json(read), "again") == read, "differs");
  } catch (const Error& error) {
    SHERD_ASSERT(
        std::string_view(error.what()).starts_with("[ckpt] fuzz: "),
        "path: ", error.what());
    return false;
  }
  return true;
}

std::string fuzz_name(FuzzBytes& bytes) {
  constexpr std::array<const char*, 6> kNames = {"a",   "b\"", "\xc3\xa4",
                                                 "c\n", "d.e", "f/g"};
  return kNames[bytes.next() % kNames.size()];
}

std::string part_text(FuzzBytes& bytes) {
  constexpr std::array<const char*, 4> kDtypes = {"F32", "BF16", "U8", "C64"};
  PartManifest part;
  for (int i = bytes.next() % 4; i >= 0; --i) {
    part.files.push_back(
        {.name = str("file", i), .bytes = bytes.next() * 4096});
  }
  for (int i = bytes.next() % 4; i > 0; --i) {
    SavedTensor tensor{
        .section = str("section", bytes.next() % 2),
        .name = str(fuzz_name(bytes), i),
        .dtype = kDtypes[bytes.next() % kDtypes.size()],
        .shape = {bytes.next(), 1 + bytes.next()},
        .range = {}};
    const auto numel = numel_of(tensor.shape);
    tensor.range.begin = std::min<std::int64_t>(bytes.next(), numel);
    tensor.range.end = numel;
    tensor.file = bytes.next() % static_cast<int>(part.files.size());
    auto& file = part.files[static_cast<std::size_t>(tensor.file)];
    tensor.offset = bytes.next();
    file.bytes = std::max(file.bytes, tensor.offset + bytes_of(tensor));
    tensor.checksums.assign(
        static_cast<std::size_t>(chunks_of(bytes_of(tensor))), bytes.next());
    part.tensors.push_back(tensor);
  }
  return to_json(part);
}

std::string manifest_text(FuzzBytes& bytes) {
  Manifest manifest{
      .step = bytes.next() * std::int64_t{1} << (bytes.next() % 48),
      .world_size = 1 + bytes.next() % 4,
      .values = {},
      .parts = {}};
  for (int i = bytes.next() % 3; i > 0; --i) {
    manifest.values[fuzz_name(bytes)] = fuzz_name(bytes);
  }
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    manifest.parts.push_back(
        {.name = part_name(rank),
         .bytes = bytes.next(),
         .checksum = bytes.next() * 0x0101010101010101ULL});
  }
  return to_json(manifest);
}

// Replaces one value by another.
bool damage_value(std::string& text, FuzzBytes& bytes) {
  auto flat = Json::parse(text).flatten();
  auto found = flat.begin();
  std::advance(found, bytes.next() % flat.size());
  const std::array<Json, 10> values = {
      -1, 0, 1, ~0ULL, 1ULL << (bytes.next() % 64), 1.5, "../x", "", true, {}};
  *found = values[bytes.next() % values.size()];
  text = flat.unflatten().dump();
  return true;
}

void run(FuzzBytes bytes) {
  const auto kind = bytes.next();
  const bool part = kind % 2 == 0;
  const auto check = part ? check_text<parse_part> : check_text<parse_manifest>;
  if (kind / 2 % 4 == 0) {
    (void)check(bytes.rest());
    return;
  }
  auto text = part ? part_text(bytes) : manifest_text(bytes);
  const bool damaged = kind / 2 % 4 == 1
      ? damage_value(text, bytes)
      : test::damage(text, bytes, test::kLikedInJson);
  const bool read = check(text);
  SHERD_ASSERT(read || damaged, "refused what was written: ", text);
}

}  // namespace
}  // namespace sherd::ckpt

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  sherd::ckpt::run(sherd::test::FuzzBytes({data, size}));
  return 0;
}
