// SPDX-License-Identifier: Apache-2.0
//
// Any bytes stand for a file, in three ways: as they are; as the JSON of a header whose length and
// data fit; and as a recipe for tensors whose header is then damaged at some bytes, or left as it
// is and must be read back. Only Error may be thrown. What is read must be the same when it is
// written again, and must be JSON for the JSON library, too.
#include "ckpt/safetensors.h"

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "base/check.h"
#include "support/fuzz_bytes.h"

namespace sherd::ckpt {
namespace {

using test::FuzzBytes;

// Returns whether the file was read.
bool check_file(std::string_view bytes, std::int64_t file_bytes) {
  SafetensorsHeader header;
  try {
    header = parse_header(bytes, file_bytes, "fuzz");
  } catch (const Error&) {
    return false;
  }
  const std::int64_t data_bytes = file_bytes - header.data_begin;
  auto written = header;
  const std::string first = header_bytes(written.tensors, header.metadata);
  SHERD_ASSERT(written == header, "places differ");
  const std::int64_t size = std::ssize(first);
  const auto again = parse_header(first, size + data_bytes, "again");
  written.data_begin = size;
  SHERD_ASSERT(again == written, "not what was written");
  const auto json = nlohmann::json::parse(
      bytes.substr(8, static_cast<std::size_t>(header.data_begin) - 8));
  const auto metadata = json.contains("__metadata__") ? 1 : 0;
  SHERD_ASSERT(json.size() == header.tensors.size() + metadata, "other JSON");
  return true;
}

std::string length_bytes(std::size_t length) {
  std::string bytes;
  for (int byte = 0; byte < 8; ++byte) {
    bytes += static_cast<char>(length >> (8 * byte) & 0xff);
  }
  return bytes;
}

// The first byte gives the number of bytes of data, mostly few.
void check_json(std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  const auto data_bytes = static_cast<unsigned char>(bytes.front());
  const std::string file =
      length_bytes(bytes.size() - 1).append(bytes.substr(1));
  (void)check_file(file, std::ssize(file) + data_bytes);
}

std::vector<TensorInfo> tensors_of(FuzzBytes& bytes) {
  constexpr std::array<const char*, 6> kDtypes = {"F32",  "BF16",    "U8",
                                                  "BOOL", "F8_E4M3", "C64"};
  std::vector<TensorInfo> tensors(bytes.next() % 5);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = str("\"", i, "\xc3\xa4");
    tensors[i].dtype = kDtypes[bytes.next() % kDtypes.size()];
    for (int dims = bytes.next() % 4; dims > 0; --dims) {
      tensors[i].shape.push_back(bytes.next() % 4);
    }
  }
  return tensors;
}

void check_damaged(FuzzBytes bytes) {
  auto tensors = tensors_of(bytes);
  const bool metadata = bytes.next() % 2 == 1;
  std::string file = header_bytes(
      tensors,
      metadata ? std::map<std::string, std::string>{{"k", "v\n"}}
               : std::map<std::string, std::string>{});
  const std::int64_t file_bytes =
      std::ssize(file) + (tensors.empty() ? 0 : tensors.back().end);
  const bool damaged = test::damage(file, bytes, test::kLikedInJson);
  const bool read = check_file(file, file_bytes);
  SHERD_ASSERT(read || damaged, "refused what was written");
}

}  // namespace
}  // namespace sherd::ckpt

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  const std::string bytes(data, data + size);
  (void)sherd::ckpt::check_file(bytes, std::ssize(bytes));
  sherd::ckpt::check_json(bytes);
  sherd::ckpt::check_damaged(sherd::test::FuzzBytes({data, size}));
  return 0;
}
