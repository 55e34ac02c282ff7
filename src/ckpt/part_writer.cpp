// SPDX-License-Identifier: Apache-2.0
#include "ckpt/part_writer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/digest.h"
#include "ckpt/dtypes.h"
#include "ckpt/progress.h"
#include "ckpt/safetensors.h"

namespace sherd::ckpt {
namespace {

using Group = std::vector<const TensorPiece*>;

std::int64_t bytes_of(const TensorPiece& piece) {
  return static_cast<std::int64_t>(piece.elements.nbytes());
}

bool is_whole(const SavedTensor& tensor) {
  return tensor.range.numel() == numel_of(tensor.shape);
}

// The pieces of each file: all of one section, in the order given.
std::vector<Group> files_of(
    const std::vector<TensorPiece>& pieces, std::int64_t bytes_max) {
  std::map<std::string, std::vector<Group>> by_section;
  std::vector<std::string> sections;
  std::map<std::string, std::int64_t> filled;
  for (const auto& piece : pieces) {
    auto& groups = by_section[piece.section];
    auto& bytes = filled[piece.section];
    if (groups.empty()) {
      sections.push_back(piece.section);
    }
    if (groups.empty() ||
        (bytes_max > 0 && bytes > 0 && bytes + bytes_of(piece) > bytes_max)) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(&piece);
    bytes += bytes_of(piece);
  }
  std::vector<Group> all;
  for (const auto& section : sections) {
    auto& groups = by_section[section];
    all.insert(all.end(), groups.begin(), groups.end());
  }
  return all;
}

}  // namespace

TensorInfo info_of(const SavedTensor& tensor) {
  return {
      .name = tensor.name,
      .dtype = tensor.dtype,
      .shape = is_whole(tensor)
          ? tensor.shape
          : std::vector<std::int64_t>{tensor.range.numel()}};
}

std::map<std::string, std::string> metadata_of(
    const std::vector<SavedTensor>& tensors) {
  auto parts = nlohmann::ordered_json::object();
  for (const auto& tensor : tensors) {
    if (!is_whole(tensor)) {
      parts[tensor.name] = {
          {"shape", tensor.shape}, {"begin", tensor.range.begin}};
    }
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!parts.empty()) {
    metadata["sherd.parts"] = parts.dump();
  }
  return metadata;
}

namespace {

struct PartWriter {
  Result<Manifest::Part> write(const std::vector<TensorPiece>& pieces) {
    std::set<TensorKey> names;
    for (const auto& piece : pieces) {
      SHERD_CHECK(
          names.insert({piece.section, piece.name}).second,
          "[ckpt] expected each name once in section ", piece.section,
          ", found ", piece.name, " again");
    }
    ProgressMeter meter(options.progress, bytes_of(pieces));
    for (const auto& group : files_of(pieces, options.file_bytes_max)) {
      SHERD_RETURN_IF_FAILED(write_group(group, meter));
    }
    const auto json = to_json(part);
    const auto name = part_name(rank);
    SHERD_RETURN_IF_FAILED(write_file(files, folder + "/" + name, json));
    SHERD_RETURN_IF_FAILED(files.sync_folder(folder));
    return Manifest::Part{
        .name = name,
        .bytes = static_cast<std::int64_t>(json.size()),
        .checksum = digest_of(json)};
  }

  Status write_group(const Group& group, ProgressMeter& meter) {
    std::vector<SavedTensor> saved;
    std::vector<TensorInfo> infos;
    for (const auto* piece : group) {
      saved.push_back(
          {.section = piece->section,
           .name = piece->name,
           .dtype = name_of(piece->elements.scalar_type()),
           .shape = piece->shape,
           .range = piece->range,
           .file = static_cast<int>(part.files.size())});
      infos.push_back(info_of(saved.back()));
    }
    const auto header = header_bytes(infos, metadata_of(saved));
    const auto& section = group.front()->section;
    const auto name = tensors_name(section, rank, files_in_section[section]++);
    SHERD_ASSIGN_OR_RETURN(const auto out, files.create(folder + "/" + name));
    SHERD_RETURN_IF_FAILED(out->write(header.data(), header.size()));
    for (std::size_t i = 0; i < group.size(); ++i) {
      saved[i].offset =
          static_cast<std::int64_t>(header.size()) + infos[i].begin;
      SHERD_RETURN_IF_FAILED(
          write_piece(*out, *group[i], std::move(saved[i]), meter));
    }
    part.files.push_back(
        {.name = name,
         .bytes = static_cast<std::int64_t>(header.size()) + infos.back().end});
    return out->sync();
  }

  // Writes chunk by chunk, so that bytes are in the cache when the kernel copies them.
  Status write_piece(
      OutputFile& out,
      const TensorPiece& piece,
      SavedTensor saved,
      ProgressMeter& meter) {
    // Its bytes, where it is on a device or a view that conjugates or negates.
    const auto elements = piece.elements.cpu().resolve_conj().resolve_neg();
    const auto* bytes = static_cast<const char*>(elements.const_data_ptr());
    for (std::int64_t at = 0; at < bytes_of(piece); at += kChunkBytes) {
      const auto count =
          static_cast<std::size_t>(std::min(kChunkBytes, bytes_of(piece) - at));
      saved.checksums.push_back(digest_of(bytes + at, count));
      SHERD_RETURN_IF_FAILED(out.write(bytes + at, count));
      meter.add(static_cast<std::int64_t>(count));
    }
    part.tensors.push_back(std::move(saved));
    return {};
  }

  FileSystem& files;
  const std::string& folder;
  const int rank;
  const SaveOptions& options;
  PartManifest part;
  std::map<std::string, int> files_in_section = {};
};

}  // namespace

std::int64_t bytes_of(const std::vector<TensorPiece>& pieces) {
  std::int64_t bytes = 0;
  for (const auto& piece : pieces) {
    bytes += bytes_of(piece);
  }
  return bytes;
}

Result<Manifest::Part> write_part(
    FileSystem& files,
    const std::string& folder,
    int rank,
    const std::vector<TensorPiece>& pieces,
    PartManifest part,
    const SaveOptions& options) {
  return PartWriter{files, folder, rank, options, std::move(part)}.write(
      pieces);
}

Status write_file(
    FileSystem& files, const std::string& path, const std::string& content) {
  SHERD_ASSIGN_OR_RETURN(const auto out, files.create(path));
  auto status = out->write(content.data(), content.size());
  return status.ok() ? out->sync() : status;
}

}  // namespace sherd::ckpt
