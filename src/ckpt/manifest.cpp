// SPDX-License-Identifier: Apache-2.0
#include "ckpt/manifest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/digest.h"
#include "base/text.h"
#include "ckpt/dtypes.h"
#include "plan/arithmetic.h"

namespace sherd::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "sherd checkpoint";
constexpr int kDepthMax = 8;
constexpr std::int64_t kElementsMax = std::int64_t{1} << 56;

constexpr std::size_t kDigits = 16;  // Of a checksum.

// The checksums as 16 hexadecimal digits each, one after another.
std::string hex_of(const std::vector<std::uint64_t>& checksums) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(checksums.size() * kDigits);
  for (const auto one : checksums) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      text += kHex[(one >> shift) & 15U];
    }
  }
  return text;
}

// Reads the fields of one JSON object; its errors say where something is wrong.
class JsonFields {
 public:
  JsonFields(const Json& json, std::string where)
      : json_(json), where_(std::move(where)) {
    SHERD_CHECK(
        json.is_object(), where_, ": expected an object, found ",
        json.type_name());
  }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    SHERD_CHECK(
        found != json_.end(), where_, ": expected '", key, "', found none");
    return *found;
  }
  std::string text(const char* key) const {
    SHERD_CHECK(at(key).is_string(), wrong(key, "a text"));
    return at(key).get<std::string>();
  }
  std::int64_t count(const char* key) const {
    const auto& value = at(key);
    const auto limit =
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    SHERD_CHECK(
        value.is_number_unsigned() && value.get<std::uint64_t>() <= limit,
        wrong(key, "a whole number of at least 0"));
    return value.get<std::int64_t>();
  }
  const Json& list(const char* key) const {
    SHERD_CHECK(at(key).is_array(), wrong(key, "a list"));
    return at(key);
  }
  // Reads the name of a file in the checkpoint's folder.
  std::string file_name(const char* key) const {
    auto name = text(key);
    SHERD_CHECK(
        !name.empty() && name.front() != '.' &&
            name.find_first_of(std::string_view("/\\\0", 3)) ==
                std::string::npos,
        wrong(key, "the name of a file in this folder"));
    return name;
  }
  // The inverse of hex_of().
  std::vector<std::uint64_t> checksums(const char* key) const {
    const auto digits = text(key);
    bool right = digits.size() % kDigits == 0;
    std::vector<std::uint64_t> found;
    for (std::size_t at = 0; right && at < digits.size(); at += kDigits) {
      const auto value = parse_number<std::uint64_t>(
          std::string_view(digits).substr(at, kDigits), 16);
      right = value.has_value();
      found.push_back(value.value_or(0));
    }
    SHERD_CHECK(right, wrong(key, "16 hexadecimal digits each"));
    return found;
  }

  std::string wrong(const char* key, const char* expected) const {
    auto found = at(key).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (found.size() > 60) {
      found = found.substr(0, 60) + "...";
    }
    return str(where_, ": ", key, ": expected ", expected, ", found ", found);
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  const std::string where_;
};

Json parse(const std::string& text, const std::string& path) {
  try {
    const Json::parser_callback_t shallow = [&](int depth, Json::parse_event_t,
                                                Json&) {
      SHERD_CHECK(
          depth <= kDepthMax, "[ckpt] ", path, ": expected at most ", kDepthMax,
          " levels of JSON");
      return true;
    };
    return Json::parse(text, shallow);
  } catch (const Json::parse_error& error) {
    throw Error(
        str("[ckpt] ", path, ": expected JSON, found something else at byte ",
            error.byte));
  } catch (const Json::exception&) {  // For example 1e999.
    throw Error(
        str("[ckpt] ", path, ": expected JSON, found a number out of range"));
  }
}

void check_format(const JsonFields& fields) {
  SHERD_CHECK(
      fields.text("format") == kFormat, fields.wrong("format", kFormat));
  SHERD_CHECK(
      fields.count("version") == kFormatVersion,
      fields.wrong("version", "1, the one this sherd knows"));
}

std::vector<std::int64_t> shape_of(const JsonFields& fields) {
  std::vector<std::int64_t> shape;
  std::int64_t numel = 1;
  for (const auto& size : fields.list("shape")) {
    SHERD_CHECK(
        size.is_number_unsigned() &&
            size.get<std::uint64_t>() <= std::uint64_t{kElementsMax} &&
            (size.get<std::int64_t>() == 0 ||
             numel <= kElementsMax / size.get<std::int64_t>()),
        fields.wrong("shape", "sizes of a tensor that can be"));
    shape.push_back(size.get<std::int64_t>());
    numel *= shape.back();
  }
  return shape;
}

SavedTensor tensor_of(
    const JsonFields& fields, const std::vector<PartManifest::File>& files) {
  SavedTensor tensor;
  tensor.section = fields.text("section");
  tensor.name = fields.text("name");
  tensor.dtype = fields.text("dtype");
  SHERD_CHECK(
      element_bytes(tensor.dtype) > 0,
      fields.wrong("dtype", "one of safetensors'"));
  tensor.shape = shape_of(fields);
  tensor.range = {fields.count("begin"), fields.count("end")};
  SHERD_CHECK(
      tensor.range.begin <= tensor.range.end &&
          tensor.range.end <= numel_of(tensor.shape),
      fields.wrong("end", "a range inside the tensor"));
  const auto file = fields.count("file");
  SHERD_CHECK(
      file < static_cast<std::int64_t>(files.size()),
      fields.wrong("file", "one of this part's files"));
  tensor.file = static_cast<int>(file);
  tensor.offset = fields.count("offset");
  const auto file_bytes = files[static_cast<std::size_t>(file)].bytes;
  SHERD_CHECK(
      tensor.offset <= file_bytes &&
          tensor.range.numel() <=
              (file_bytes - tensor.offset) / element_bytes(tensor.dtype),
      fields.wrong("offset", "a place inside the file"));
  tensor.checksums = fields.checksums("xxh3");
  SHERD_CHECK(
      static_cast<std::int64_t>(tensor.checksums.size()) ==
          chunks_of(bytes_of(tensor)),
      fields.wrong("xxh3", "a checksum for each MiB"));
  return tensor;
}

constexpr std::size_t kRankDigits = 5;

std::string padded(int number, std::size_t width) {
  auto digits = std::to_string(number);
  digits.insert(0, digits.size() < width ? width - digits.size() : 0, '0');
  return digits;
}

// The manifest without its own checksum.
Json json_of(const Manifest& manifest) {
  Json json = {
      {"format", kFormat},
      {"version", kFormatVersion},
      {"step", manifest.step},
      {"world_size", manifest.world_size}};
  json["values"] = Json::object();
  for (const auto& [name, value] : manifest.values) {
    json["values"][name] = value;
  }
  json["parts"] = Json::array();
  for (const auto& part : manifest.parts) {
    json["parts"].push_back(
        {{"name", part.name},
         {"bytes", part.bytes},
         {"xxh3", hex_of({part.checksum})}});
  }
  return json;
}

std::uint64_t checksum_of(const Json& json) { return digest_of(json.dump()); }

}  // namespace

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  for (const auto size : shape) {
    numel *= size;
  }
  return numel;
}

std::int64_t bytes_of(const SavedTensor& tensor) {
  return tensor.range.numel() * element_bytes(tensor.dtype);
}

std::int64_t chunks_of(std::int64_t bytes) {
  return plan::divide_up(bytes, kChunkBytes);
}

std::string to_json(const PartManifest& part) {
  Json json = {{"format", kFormat}, {"version", kFormatVersion}};
  json["files"] = Json::array();
  for (const auto& file : part.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  json["tensors"] = Json::array();
  for (const auto& tensor : part.tensors) {
    json["tensors"].push_back(
        {{"section", tensor.section},
         {"name", tensor.name},
         {"dtype", tensor.dtype},
         {"shape", tensor.shape},
         {"begin", tensor.range.begin},
         {"end", tensor.range.end},
         {"file", tensor.file},
         {"offset", tensor.offset},
         {"xxh3", hex_of(tensor.checksums)}});
  }
  if (part.modules) {
    json["modules"] = *part.modules;
  }
  if (!part.tied.empty()) {
    json["tied"] = part.tied;
  }
  return json.dump() + "\n";
}

std::string to_json(const Manifest& manifest) {
  auto json = json_of(manifest);
  json["xxh3"] = hex_of({checksum_of(json)});
  return json.dump(1) + "\n";
}

PartManifest parse_part(const std::string& text, const std::string& path) {
  const auto json = parse(text, path);
  const JsonFields fields(json, "[ckpt] " + path);
  check_format(fields);
  PartManifest part;
  std::set<std::string> names;
  for (const auto& entry : fields.list("files")) {
    const JsonFields file(
        entry, str(fields.where(), ": file ", part.files.size()));
    part.files.push_back(
        {.name = file.file_name("name"), .bytes = file.count("bytes")});
    SHERD_CHECK(
        names.insert(part.files.back().name).second,
        file.wrong("name", "a name that comes once"));
  }
  std::set<TensorKey> tensors;
  for (const auto& entry : fields.list("tensors")) {
    const JsonFields tensor(
        entry, str(fields.where(), ": tensor ", part.tensors.size()));
    part.tensors.push_back(tensor_of(tensor, part.files));
    SHERD_CHECK(
        tensors.insert({part.tensors.back().section, part.tensors.back().name})
            .second,
        tensor.wrong("name", "a name that comes once"));
  }
  if (json.contains("modules")) {  // Older versions lack it.
    part.modules.emplace();
    for (const auto& name : fields.list("modules")) {
      SHERD_CHECK(name.is_string(), fields.wrong("modules", "names"));
      part.modules->push_back(name.get<std::string>());
    }
  }
  if (json.contains("tied")) {
    const auto& tied = json["tied"];
    const bool fine =
        tied.is_object() && std::ranges::all_of(tied, [](const auto& first) {
          return first.is_string();
        });
    SHERD_CHECK(fine, fields.wrong("tied", "names by name"));
    part.tied = tied.get<std::map<std::string, std::string>>();
  }
  return part;
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const auto json = parse(text, path);
  const JsonFields fields(json, "[ckpt] " + path);
  check_format(fields);
  Manifest manifest;
  manifest.step = fields.count("step");
  const auto world_size = fields.count("world_size");
  SHERD_CHECK(
      world_size >= 1 && world_size <= std::numeric_limits<int>::max(),
      fields.wrong("world_size", "a number of ranks"));
  manifest.world_size = static_cast<int>(world_size);
  SHERD_CHECK(
      fields.at("values").is_object(), fields.wrong("values", "an object"));
  for (const auto& [name, value] : fields.at("values").items()) {
    SHERD_CHECK(value.is_string(), fields.wrong("values", "texts alone"));
    manifest.values[name] = value.get<std::string>();
  }
  for (const auto& entry : fields.list("parts")) {
    const JsonFields part(
        entry, str(fields.where(), ": part ", manifest.parts.size()));
    const auto sums = part.checksums("xxh3");
    SHERD_CHECK(sums.size() == 1, part.wrong("xxh3", "one checksum"));
    manifest.parts.push_back(
        {.name = part.file_name("name"),
         .bytes = part.count("bytes"),
         .checksum = sums.front()});
  }
  SHERD_CHECK(
      static_cast<std::int64_t>(manifest.parts.size()) == world_size,
      fields.wrong("parts", "one for each rank"));
  const auto sums = fields.checksums("xxh3");
  SHERD_CHECK(
      sums.size() == 1 && sums.front() == checksum_of(json_of(manifest)),
      fields.wrong("xxh3", "the checksum of the rest; it is damaged"));
  return manifest;
}

std::string part_name(int rank) {
  return "part-" + padded(rank, kRankDigits) + ".json";
}

std::string tensors_name(const std::string& section, int rank, int number) {
  return section + "-" + padded(rank, kRankDigits) + "-" + padded(number, 3) +
      ".safetensors";
}

std::string folder_name(std::int64_t step) {
  return "step-" + std::to_string(step);
}

std::int64_t step_of(const std::string& folder_name) {
  constexpr std::string_view kPrefix = "step-";
  if (!folder_name.starts_with(kPrefix)) {
    return -1;
  }
  const auto digits = std::string_view(folder_name).substr(kPrefix.size());
  const auto step = parse_number<std::int64_t>(digits).value_or(-1);
  // Signs and leading zeros are of other names.
  return step >= 0 && std::to_string(step) == digits ? step : -1;
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > kShown
      ? str(text, " and ", names.size() - kShown, " more")
      : text;
}

}  // namespace sherd::ckpt
