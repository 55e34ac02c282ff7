// SPDX-License-Identifier: Apache-2.0
// What is done with checkpoints without a job.
#include <map>
#include <utility>
#include <vector>

#include <sherd/ckpt/checkpoint.h>

#include "base/check.h"
#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "ckpt/session.h"

namespace sherd {
namespace {

using Sections = std::
    map<std::string, std::vector<std::pair<std::string, ckpt::StoredTensor>>>;

// One file of whole tensors, one after another.
void write_section(
    const ckpt::CheckpointReader& reader,
    const Sections::value_type& section,
    const MergeOptions& options,
    ckpt::Files& files,
    const std::string& path) {
  std::vector<ckpt::TensorInfo> infos;
  for (const auto& [name, tensor] : section.second) {
    infos.push_back(
        {.name = options.rename ? options.rename(name) : name,
         .dtype = tensor.dtype,
         .shape = tensor.shape});
  }
  const auto header = ckpt::header_bytes(infos, {{"format", "pt"}});
  auto created = files.create(path);
  created.status().throw_if_failed();
  const auto out = std::move(created).value();
  out->write(header.data(), header.size()).throw_if_failed();
  std::vector<char> room;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const auto& info = infos[i];
    room.resize(static_cast<std::size_t>(info.end - info.begin));
    reader.read(
        {section.first, section.second[i].first},
        {0, ckpt::numel_of(info.shape)}, 0, room.data());
    out->write(room.data(), room.size()).throw_if_failed();
  }
  out->sync().throw_if_failed();
}

}  // namespace

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const auto files = ckpt::make_posix_files();
  const auto steps = ckpt::complete_steps(*files, folder);
  return !steps.ok() || steps.value().empty()
      ? std::nullopt
      : std::optional(folder + "/" + ckpt::folder_name(steps.value().back()));
}

CheckpointContent checkpoint_content(const std::string& folder) {
  const ckpt::CheckpointReader reader(folder);
  CheckpointContent content{
      .folder = folder,
      .step = reader.manifest().step,
      .world_size = reader.manifest().world_size,
      .values = reader.manifest().values,
      .tensors = {}};
  for (const auto& part : reader.parts()) {
    for (const auto& file : part.files) {
      ++content.files;
      content.bytes += file.bytes;
    }
  }
  for (const auto& [key, tensor] : reader.tensors()) {
    content.tensors.push_back(
        {.section = key.first,
         .name = key.second,
         .dtype = tensor.dtype,
         .shape = tensor.shape,
         .parts = static_cast<int>(tensor.places.size())});
  }
  return content;
}

std::int64_t verify_checkpoint(const std::string& folder) {
  return ckpt::CheckpointReader(folder).verify();
}

std::vector<std::string> merge_checkpoint(
    const std::string& folder,
    const std::string& to,
    const MergeOptions& options) {
  const ckpt::CheckpointReader reader(folder);
  const auto files = ckpt::make_posix_files();
  files->make_folder(to).throw_if_failed();
  const auto there = files->list(to);
  SHERD_CHECK_AS(
      kUnavailable, there.value().empty(), "[ckpt] ", to,
      ": expected an empty folder, found ", there.value().front(), " in it");
  Sections sections;
  for (const auto& [key, tensor] : reader.tensors()) {
    if (options.section.empty() || options.section == key.first) {
      sections[key.first].emplace_back(key.second, tensor);
    }
  }
  SHERD_CHECK(
      !sections.empty(), "[ckpt] ", folder, ": expected a section ",
      options.section, ", found none");
  std::vector<std::string> written;
  for (const auto& section : sections) {
    written.push_back(to + "/" + section.first + ".safetensors");
    write_section(reader, section, options, *files, written.back());
  }
  return written;
}

}  // namespace sherd
