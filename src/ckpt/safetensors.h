// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: which tensors it holds, of which dtype and
// shape, and where their bytes lie. A file is N in 8 bytes, little-endian; N
// bytes of JSON, padded with spaces; the data, which tensors cover without hole
// or overlap (https://huggingface.co/docs/safetensors). Nothing is read or
// written here: bytes come in, bytes go out. What parse_header() returns can be
// trusted, whoever wrote the file: every number in it was checked against the
// others and against the size of the file. Thread rule: pure functions and
// values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::ckpt {

struct TensorInfo {
  // Neither empty nor with control characters, which would garble messages and
  // lists of names; else any UTF-8 but "__metadata__".
  std::string name;
  std::string dtype;                // As the format spells it: "F32", "BF16".
  std::vector<std::int64_t> shape;  // Empty: one number.
  // Bytes from the first byte of data. Equal where the shape holds a 0.
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const TensorInfo&) const = default;
};

struct SafetensorsHeader {
  // In the order of the file: by begin, then end, then name. A tensor without
  // bytes so comes before the one that starts at its place.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // Bytes from the first byte of the file.

  bool operator==(const SafetensorsHeader&) const = default;
};

// Of the JSON. The format's own limit: a file that lies about its length cannot
// make a reader allocate without end.
inline constexpr std::int64_t kHeaderBytesMax = 100'000'000;

// Of one tensor. The format sets no limit; a shape of a hundred million ones
// would fit in a header, and no tensor library works with more dims than this.
inline constexpr int kDimsMax = 64;

// Bytes of one element. 0: no dtype of the format, or one whose elements are no
// whole bytes (F4, F6_E2M3, F6_E3M2), which are refused everywhere here.
std::int64_t element_bytes(std::string_view dtype);

// The first bytes of a file whose data hold `tensors` one after another in the
// order given: length and JSON, with as many spaces that data begin at a
// multiple of 64, so that a mapped file has aligned tensors if their sizes are.
// Sets begin and end of each tensor, whatever they were.
// Throws Error, and leaves `tensors` as they were, for a name that is not as
// TensorInfo says or comes twice, an unknown dtype, a negative or too large
// size, a text that is no UTF-8, and a header above kHeaderBytesMax.
std::string header_bytes(
    std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata);

// How many of the file's first bytes parse_header() needs, all of them before
// data_begin; `first8` are the first 8. Throws Error for fewer than 8 and for
// a length that the format forbids or that the file is too short for.
std::int64_t header_length(
    std::string_view first8, std::int64_t file_bytes, const std::string& path);

// `bytes` are the file's first header_length() ones, or more. `path` is only
// for messages. Throws Error for everything that contradicts the format, with
// the path, what was expected and found, and the tensor or the byte of the file
// where. Stricter than the format in what only a damaged or hostile file has:
// keys of a tensor that the format does not know, names that TensorInfo forbids,
// more than kDimsMax dims, sizes other than 0 that multiply to 2^61 bytes.
SafetensorsHeader parse_header(
    std::string_view bytes, std::int64_t file_bytes, const std::string& path);

}  // namespace sherd::ckpt
