// SPDX-License-Identifier: Apache-2.0
//
// The manifests of a checkpoint, as values and as JSON: checkpoint.json, whose presence makes the
// checkpoint complete, and the part-00000.json of each rank. docs/design/checkpoints.md specifies
// them to the byte. Thread rule: pure functions and values.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "plan/flat_layout.h"

namespace sherd::ckpt {

constexpr const char* kManifestName = "checkpoint.json";
constexpr const char* kModelSection = "model";  // Parts name its modules.
constexpr std::int64_t kFormatVersion = 1;
// Each chunk of a tensor's bytes has a checksum, so that a part of a tensor can be verified without
// reading the rest: 64-bit XXH3 (https://xxhash.com), against broken disks and memory, not against
// deliberate changes.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

// Names a tensor of a checkpoint.
struct TensorKey {
  std::string section;
  std::string name;

  auto operator<=>(const TensorKey&) const = default;
  std::string text() const { return section + " " + name; }
};

// A range of a flattened tensor that one rank has saved.
struct SavedTensor {
  std::string section;  // "model", "optimizer".
  std::string name;
  std::string dtype;                // As safetensors names it.
  std::vector<std::int64_t> shape;  // Of the whole tensor.
  plan::ElementRange range;
  int file = 0;             // Index in the files of the part.
  std::int64_t offset = 0;  // Bytes from the beginning of the file.
  std::vector<std::uint64_t> checksums = {};  // By chunk of its bytes.
  bool operator==(const SavedTensor&) const = default;
};

struct PartManifest {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    bool operator==(const File&) const = default;
  };

  std::vector<File> files = {};
  std::vector<SavedTensor> tensors = {};
  // Only in rank 0's part: the names of modules without tensors and children, such as ReLU. Names
  // of tensors show the others. Unset: the checkpoint does not know them.
  std::optional<std::vector<std::string>> modules = {};
  // Only in rank 0's part: the further names of tied parameters of the model, and the name under
  // which each is saved.
  std::map<std::string, std::string> tied = {};
  bool operator==(const PartManifest&) const = default;
};

struct Manifest {
  // What checkpoint.json says about the JSON of one part.
  struct Part {
    std::string name;
    std::int64_t bytes = 0;
    std::uint64_t checksum = 0;
    bool operator==(const Part&) const = default;
  };

  std::int64_t step = 0;
  int world_size = 1;
  std::map<std::string, std::string> values;  // The program's own.
  std::vector<Part> parts;                    // By rank.
  bool operator==(const Manifest&) const = default;
};

std::int64_t numel_of(const std::vector<std::int64_t>& shape);
std::int64_t bytes_of(const SavedTensor& tensor);
std::int64_t chunks_of(std::int64_t bytes);

std::string to_json(const PartManifest& part);
std::string to_json(const Manifest& manifest);

// Throw Error, naming `path`, what was expected and what was found, for anything that to_json()
// does not make, including names that lead out of the folder, and ranges that do not fit their
// tensor or file.
PartManifest parse_part(const std::string& text, const std::string& path);
Manifest parse_manifest(const std::string& text, const std::string& path);

std::string part_name(int rank);  // "part-00003.json"
// "model-00003-001.safetensors": the rank's second file of that section.
std::string tensors_name(const std::string& section, int rank, int number);

// The name of a checkpoint's folder, "step-100", and the step in such a name, or -1.
std::string folder_name(std::int64_t step);
std::int64_t step_of(const std::string& folder_name);

// The first five names, and how many more there are, for messages.
std::string list_of(const std::vector<std::string>& names);

}  // namespace sherd::ckpt
