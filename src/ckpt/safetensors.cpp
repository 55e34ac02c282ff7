// SPDX-License-Identifier: Apache-2.0
#include "ckpt/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <nlohmann/json.hpp>
#include "base/check.h"
#include "base/text.h"
#include "ckpt/dtypes.h"
#include "plan/arithmetic.h"

namespace sherd::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kDataAlignment = 64;
// The beginning of messages, before the path; together they are `where` below.
constexpr const char* kPart = "[ckpt] ";
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kDtype = "dtype";
constexpr const char* kShape = "shape";
constexpr const char* kOffsets = "data_offsets";

// A text for messages: short, in ASCII and on one line, whatever its bytes are.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 80;
  const Json start = std::string(text.substr(0, kShown));
  return start.dump(-1, ' ', true, Json::error_handler_t::replace) +
      (text.size() > kShown ? "..." : "");
}

std::string of_tensor(const TensorInfo& info) {
  return " of tensor " + in_quotes(info.name);
}

void check_name(const std::string& name, const std::string& where) {
  const bool control = std::ranges::any_of(
      name, [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; });
  SHERD_CHECK(
      !name.empty() && !control && name != kMetadata, where,
      "expected a name of a tensor, without control characters, found ",
      in_quotes(name));
}

// The number of bytes for dtype and shape, checked.
std::int64_t tensor_bytes(const TensorInfo& info, const std::string& where) {
  std::int64_t bytes = element_bytes(info.dtype);
  SHERD_CHECK(
      bytes > 0, where, "expected a dtype with elements of whole bytes, found ",
      in_quotes(info.dtype), of_tensor(info));
  SHERD_CHECK(
      info.shape.size() <= std::size_t{kDimsMax}, where, "expected at most ",
      kDimsMax, " dims, found ", info.shape.size(), of_tensor(info));
  bool empty = false;
  for (const std::int64_t size : info.shape) {
    SHERD_CHECK(
        size >= 0, where, "expected sizes of 0 or more, found ", size,
        of_tensor(info));
    empty = empty || size == 0;
    // Strides are products of sizes, with 1 instead of 0, and must not overflow either.
    bytes = plan::multiply_capped(bytes, std::max<std::int64_t>(size, 1));
  }
  SHERD_CHECK(
      bytes < plan::kSizeCeiling, where,
      "expected a shape of fewer than 2^61 bytes, found more", of_tensor(info));
  return empty ? 0 : bytes;
}

// A parser for the part of JSON that the format uses. It accepts no deeper nesting than the caller
// asks for, and refuses a list that is too long before storing it. The JSON library reads texts and
// their escapes.
class HeaderParser {
 public:
  HeaderParser(std::string_view json, std::string where)
      : json_(json), where_(std::move(where)) {}

  // Calls `value` with each key and its position; `value` reads the value.
  template <typename Value>
  void object(const Value& value) {
    expect("'{'");
    std::set<std::string> keys;
    if (take('}')) {
      return;
    }
    do {
      const std::size_t at = skip_space();
      const std::string key = text();
      check(keys.insert(key).second, "each key once", at);
      expect("':'");
      value(key, at);
    } while (take(','));
    expect("'}'");
  }

  std::vector<std::int64_t> whole_numbers(std::size_t count_max) {
    std::vector<std::int64_t> numbers;
    expect("'['");
    if (take(']')) {
      return numbers;
    }
    do {
      if (numbers.size() == count_max) {
        check(false, str("at most ", count_max, " numbers"), at_);
      }
      numbers.push_back(whole_number());
    } while (take(','));
    expect("']'");
    return numbers;
  }

  std::string text() {
    const std::size_t start = skip_space();
    check(start < json_.size() && json_[start] == '"', "a text", start);
    std::size_t last = start + 1;
    while (last < json_.size() && json_[last] != '"') {
      last += json_[last] == '\\' ? 2 : 1;
    }
    const auto token = json_.substr(start, last - start + 1);
    const auto value = Json::parse(token.begin(), token.end(), nullptr, false);
    check(value.is_string(), "a text of JSON in UTF-8", start);
    at_ = last + 1;
    return value.get<std::string>();
  }

  // Checks that only padding follows.
  void end() const {
    const auto left = json_.find_first_not_of(' ', at_);
    check(left == json_.npos, "only spaces behind the JSON", left);
  }

  // `at` is a position in the JSON.
  void check(bool right, std::string_view expected, std::size_t at) const {
    SHERD_CHECK(
        right, where_, "expected ", expected, ", found ",
        at < json_.size() ? in_quotes(json_.substr(at, 24)) : "the end",
        " at byte ", at + kLengthBytes);
  }

 private:
  // Skips white space, and returns the position after it.
  std::size_t skip_space() {
    at_ = std::min(json_.find_first_not_of(" \t\n\r", at_), json_.size());
    return at_;
  }

  // Returns whether the next byte is `c`; if so, skips it.
  bool take(char c) {
    const bool found = skip_space() < json_.size() && json_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }

  void expect(const char* quoted) {
    const bool found = take(quoted[1]);
    check(found, quoted, at_);
  }

  std::int64_t whole_number() {
    const std::size_t start = skip_space();
    at_ =
        std::min(json_.find_first_not_of("+-.0123456789Ee", at_), json_.size());
    const auto token = json_.substr(start, at_ - start);
    const auto value = parse_number<std::uint64_t>(token);
    check(
        value && *value <= std::numeric_limits<std::int64_t>::max() &&
            (token.size() == 1 || token[0] != '0'),
        "a whole number from 0 to 2^63 - 1", start);
    return static_cast<std::int64_t>(*value);
  }

  const std::string_view json_;
  const std::string where_;
  std::size_t at_ = 0;
};

// Reads and checks one tensor; check_cover() checks its position among the others.
TensorInfo read_tensor(
    HeaderParser& parser, const std::string& name, const std::string& where) {
  check_name(name, where);
  TensorInfo info;
  info.name = name;
  std::vector<std::int64_t> offsets;
  int keys = 0;
  parser.object([&](const std::string& key, std::size_t at) {
    if (key == kDtype) {
      info.dtype = parser.text();
    } else if (key == kShape) {
      info.shape = parser.whole_numbers(kDimsMax);
    } else {
      parser.check(key == kOffsets, "dtype, shape or data_offsets", at);
      offsets = parser.whole_numbers(2);
    }
    ++keys;
  });
  SHERD_CHECK(
      keys == 3 && offsets.size() == 2, where,
      "expected dtype, shape and two data_offsets", of_tensor(info),
      ", found fewer");
  info.begin = offsets[0];
  info.end = offsets[1];
  const std::int64_t bytes = tensor_bytes(info, where);
  SHERD_CHECK(
      info.end - info.begin == bytes, where, "expected ", bytes, " bytes",
      of_tensor(info), ", as dtype and shape say, found ", kOffsets, " from ",
      info.begin, " to ", info.end);
  return info;
}

SafetensorsHeader read_json(std::string_view json, const std::string& where) {
  HeaderParser parser(json, where);
  parser.check(json.front() == '{', "a header that begins with '{'", 0);
  SafetensorsHeader header;
  parser.object([&](const std::string& key, std::size_t /*at*/) {
    if (key != kMetadata) {
      header.tensors.push_back(read_tensor(parser, key, where));
      return;
    }
    parser.object([&](const std::string& name, std::size_t /*at*/) {
      header.metadata[name] = parser.text();
    });
  });
  parser.end();
  return header;
}

// Checks that tensors cover the data without gap or overlap. REQUIRES: sorted as in a header.
void check_cover(
    const std::vector<TensorInfo>& tensors,
    std::int64_t data_bytes,
    const std::string& where) {
  std::int64_t covered = 0;
  for (const auto& info : tensors) {
    SHERD_CHECK(
        info.end <= data_bytes, where, "expected ", data_bytes,
        " bytes of data or fewer, found the end", of_tensor(info), " at ",
        info.end);
    SHERD_CHECK(
        info.begin == covered, where, "expected the begin", of_tensor(info),
        " at ", covered, " of data, found ", info.begin,
        info.begin < covered ? ", an overlap" : ", a hole");
    covered = info.end;
  }
  SHERD_CHECK(
      covered == data_bytes, where, "expected ", covered,
      " bytes of data, as many as tensors have, found ", data_bytes);
}

// Checks the tensors, and lays them out one after another in the data.
std::vector<TensorInfo> place(std::vector<TensorInfo> tensors) {
  std::set<std::string> names;
  std::int64_t covered = 0;
  for (auto& info : tensors) {
    check_name(info.name, kPart);
    const bool added = names.insert(info.name).second;
    SHERD_CHECK(
        added, kPart, "expected each name once, found two", of_tensor(info));
    info.begin = covered;
    covered += tensor_bytes(info, kPart);
    SHERD_CHECK(
        covered < plan::kSizeCeiling, kPart,
        "expected data of fewer than 2^61 bytes, found more");
    info.end = covered;
  }
  return tensors;
}

std::string json_of(
    const std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto add = [&](const std::string& key, const Json& value) {
    try {
      text.append(text.size() > 1 ? "," : "").append(Json(key).dump());
      text.append(":").append(value.dump());
    } catch (const Json::type_error&) {
      throw Error(
          str(kPart, "expected UTF-8, found ", in_quotes(key),
              " or other bytes for it"));
    }
  };
  if (!metadata.empty()) {
    add(kMetadata, metadata);
  }
  for (const auto& info : tensors) {
    Json entry;
    entry[kDtype] = info.dtype;
    entry[kShape] = info.shape;
    entry[kOffsets] = {info.begin, info.end};
    add(info.name, entry);
  }
  return text + "}";
}

}  // namespace

std::string header_bytes(
    std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto placed = place(tensors);
  const std::string json = json_of(placed, metadata);
  const std::int64_t data_begin =
      plan::round_up(kLengthBytes + std::ssize(json), kDataAlignment);
  const std::int64_t length = data_begin - kLengthBytes;
  SHERD_CHECK(
      length <= kHeaderBytesMax, kPart, "expected a header of at most ",
      kHeaderBytesMax, " bytes, found one of ", length);
  std::string bytes;
  for (int byte = 0; byte < kLengthBytes; ++byte) {
    bytes += static_cast<char>(length >> (8 * byte) & 0xff);
  }
  bytes += json;
  bytes.resize(static_cast<std::size_t>(data_begin), ' ');
  tensors = std::move(placed);
  return bytes;
}

std::int64_t header_length(
    std::string_view first8, std::int64_t file_bytes, const std::string& path) {
  const auto found = std::min<std::int64_t>(std::ssize(first8), file_bytes);
  SHERD_CHECK(
      found >= kLengthBytes, kPart, path, ": expected ", kLengthBytes,
      " bytes with the length of the header, found ", found, " at byte 0");
  std::uint64_t length = 0;
  for (std::size_t byte = 0; byte < kLengthBytes; ++byte) {
    length |= std::uint64_t{static_cast<unsigned char>(first8[byte])}
        << (8 * byte);
  }
  // At least "{}".
  SHERD_CHECK(
      length >= 2 && length <= kHeaderBytesMax, kPart, path,
      ": expected a header of 2 to ", kHeaderBytesMax,
      " bytes, found the length ", length, " at byte 0");
  const auto data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  SHERD_CHECK(
      data_begin <= file_bytes, kPart, path, ": expected a header of ", length,
      " bytes, found the end of the file at byte ", file_bytes);
  return data_begin;
}

SafetensorsHeader parse_header(
    std::string_view bytes, std::int64_t file_bytes, const std::string& path) {
  const auto data_begin = header_length(bytes, file_bytes, path);
  const std::string where = str(kPart, path, ": ");
  SHERD_CHECK(
      std::ssize(bytes) >= data_begin, where, "expected the first ", data_begin,
      " bytes of the file, found ", bytes.size());
  const auto json_bytes = static_cast<std::size_t>(data_begin - kLengthBytes);
  auto header = read_json(bytes.substr(kLengthBytes, json_bytes), where);
  header.data_begin = data_begin;
  std::ranges::sort(header.tensors, {}, [](const TensorInfo& info) {
    return std::tie(info.begin, info.end, info.name);
  });
  check_cover(header.tensors, file_bytes - data_begin, where);
  return header;
}

}  // namespace sherd::ckpt
