// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: which tensors it contains, their dtypes and shapes, and where
// their bytes are. A file is N in 8 bytes, little-endian; N bytes of JSON, padded with spaces; and
// the data, which tensors cover without gap or overlap (https://huggingface.co/docs/safetensors).
// These functions read and write no files. The result of parse_header() can be trusted, whoever
// wrote the file: every number was checked against the others and against the size of the file.
// Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::ckpt {

struct TensorInfo {
  // Any UTF-8 except "__metadata__", not empty and without control characters, which would garble
  // messages.
  std::string name;
  std::string dtype;                // As the format spells it: "F32", "BF16".
  std::vector<std::int64_t> shape;  // Empty: one number.
  // In bytes from the first byte of the data. Equal if the shape contains a 0.
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const TensorInfo&) const = default;
};

struct SafetensorsHeader {
  // In the order of the file: by begin, then end, then name, so that a tensor without bytes
  // precedes one that starts at the same position.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // Bytes from the first byte of the file.

  bool operator==(const SafetensorsHeader&) const = default;
};

// The format's own limit for the JSON. It keeps a file with a wrong length from making a reader
// allocate without end.
inline constexpr std::int64_t kHeaderBytesMax = 100'000'000;

// The largest number of dims of a tensor. The format sets no limit, but no tensor library supports
// more than this.
inline constexpr int kDimsMax = 64;

// The first bytes of a file whose data contain `tensors` one after another in the order given: the
// length and the JSON, padded with spaces so that the data begin at a multiple of 64 and tensors in
// a mapped file can be aligned. Sets begin and end of each tensor. Throws Error, and leaves
// `tensors` unchanged, for a name that TensorInfo forbids or that occurs twice, an unknown dtype, a
// negative or too large size, a text that is not UTF-8, and a header larger than kHeaderBytesMax.
std::string header_bytes(
    std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata);

// How many of the file's first bytes parse_header() needs: everything before the data. `first8` are
// the first 8 bytes. Throws Error for fewer than 8, and for a length that the format forbids or
// that exceeds the file.
std::int64_t header_length(
    std::string_view first8, std::int64_t file_bytes, const std::string& path);

// `bytes` are the file's first header_length() bytes, or more. Throws Error for everything that
// contradicts the format, naming `path`, what was expected and found, and the tensor or the byte of
// the file. Also refuses what only a damaged or hostile file has: unknown keys of a tensor, names
// that TensorInfo forbids, more than kDimsMax dims, and nonzero sizes whose product is 2^61 bytes
// or more.
SafetensorsHeader parse_header(
    std::string_view bytes, std::int64_t file_bytes, const std::string& path);

}  // namespace sherd::ckpt
