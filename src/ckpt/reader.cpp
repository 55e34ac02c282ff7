// SPDX-License-Identifier: Apache-2.0
#include "ckpt/reader.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/mapped_file.h"
#include "ckpt/checksum.h"
#include "ckpt/dtypes.h"
#include "ckpt/safetensors.h"
#include "plan/checkpoint_reads.h"

namespace sherd::ckpt {
namespace {

std::string content_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  file.status().throw_if_failed();
  return std::string(file.value().bytes());
}

}  // namespace

// A range of bytes of one saved tensor.
struct CheckpointReader::ReadRequest {
  const SavedTensor& tensor;
  std::string path;
  std::shared_ptr<const Descriptor> file;
  std::int64_t begin = 0;  // From the tensor's first byte in the file.
  std::int64_t end = 0;
  char* to = nullptr;
};

CheckpointReader::CheckpointReader(const std::string& folder)
    : folder_(folder), files_(std::make_unique<OpenFiles>()) {
  const auto path = folder + "/" + kManifestName;
  std::error_code error;
  const bool found = std::filesystem::exists(path, error);
  SHERD_CHECK_AS(
      kUnavailable, !error, "[ckpt] cannot look for ", path, ": ",
      error.message());
  SHERD_CHECK_AS(
      kUnavailable, found, "[ckpt] ", folder,
      ": expected a complete checkpoint, found ",
      std::filesystem::is_directory(folder, error) ? "no checkpoint.json in it"
                                                   : "no such folder");
  manifest_ = parse_manifest(content_of(path), path);
  for (const auto& file : manifest_.parts) {
    const auto part_path = folder + "/" + file.name;
    const auto text = content_of(part_path);
    SHERD_CHECK(
        static_cast<std::int64_t>(text.size()) == file.bytes &&
            checksum(text.data(), text.size()) == file.checksum,
        "[ckpt] ", part_path, ": expected ", file.bytes,
        " bytes with the checksum that checkpoint.json has, found ",
        text.size(), " others");
    parts_.push_back(parse_part(text, part_path));
  }
  open_files();
  collect();
}

CheckpointReader::~CheckpointReader() = default;

// So that a file that is missing or cut is noticed before any tensor is read.
void CheckpointReader::open_files() {
  for (const auto& part : parts_) {
    for (const auto& file : part.files) {
      (void)files_->open(folder_ + "/" + file.name, file.bytes);
    }
  }
}

void CheckpointReader::collect() {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    for (std::size_t t = 0; t < parts_[p].tensors.size(); ++t) {
      const auto& piece = parts_[p].tensors[t];
      auto& tensor = tensors_[{piece.section, piece.name}];
      if (tensor.pieces.empty()) {
        tensor.dtype = piece.dtype;
        tensor.shape = piece.shape;
      }
      SHERD_CHECK(
          tensor.dtype == piece.dtype && tensor.shape == piece.shape, "[ckpt] ",
          folder_, "/", manifest_.parts[p].name, ": ", piece.section, " ",
          piece.name, " has another dtype or shape than in ",
          manifest_.parts[static_cast<std::size_t>(tensor.pieces.front().part)]
              .name);
      tensor.pieces.push_back({static_cast<int>(p), static_cast<int>(t)});
    }
  }
}

const SavedTensor& CheckpointReader::saved(
    const StoredTensor::PieceIndex& index) const {
  return parts_[static_cast<std::size_t>(index.part)]
      .tensors[static_cast<std::size_t>(index.tensor)];
}

std::vector<plan::SavedPiece> CheckpointReader::pieces_of(
    const StoredTensor& tensor) const {
  std::vector<plan::SavedPiece> pieces;
  for (const auto& index : tensor.pieces) {
    pieces.push_back({.range = saved(index).range, .file = index.part});
  }
  return pieces;
}

std::int64_t CheckpointReader::read(
    const TensorKey& key,
    plan::ElementRange range,
    int reader,
    void* to) const {
  const auto found = tensors_.find(key);
  SHERD_CHECK(
      found != tensors_.end(), "[ckpt] ", folder_, ": expected ", key.text(),
      ", found none");
  const auto& tensor = found->second;
  const auto plan = plan::plan_reads(pieces_of(tensor), range, reader);
  SHERD_CHECK(
      plan.missing.empty(), "[ckpt] ", folder_, ": expected elements ",
      range.begin, " to ", range.end, " of ", key.text(), ", found none of ",
      plan.missing.front().begin, " to ", plan.missing.front().end,
      " in any part");
  const auto size = element_bytes(tensor.dtype);
  std::int64_t bytes = 0;
  for (const auto& one : plan.reads) {
    auto wanted = all_of(tensor.pieces[static_cast<std::size_t>(one.piece)]);
    const auto first = wanted.tensor.range.begin;
    wanted.begin = (one.range.begin - first) * size;
    wanted.end = (one.range.end - first) * size;
    wanted.to = static_cast<char*>(to) + (one.range.begin - range.begin) * size;
    bytes += read_bytes(wanted);
  }
  return bytes;
}

at::Tensor CheckpointReader::read_whole(const TensorKey& key) const {
  const auto& stored = tensors_.at(key);
  const auto dtype = dtype_named(stored.dtype, str(folder_, ": ", key.text()));
  auto tensor = at::empty(stored.shape, dtype);
  read(key, {0, tensor.numel()}, 0, tensor.mutable_data_ptr());
  return tensor;
}

CheckpointReader::ReadRequest CheckpointReader::all_of(
    const StoredTensor::PieceIndex& index) const {
  const auto& tensor = saved(index);
  const auto& file = parts_[static_cast<std::size_t>(index.part)]
                         .files[static_cast<std::size_t>(tensor.file)];
  const auto path = folder_ + "/" + file.name;
  return {
      .tensor = tensor,
      .path = path,
      .file = files_->open(path, file.bytes),
      .end = bytes_of(tensor)};
}

std::int64_t CheckpointReader::tensor_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& part : parts_) {
    for (const auto& tensor : part.tensors) {
      bytes += bytes_of(tensor);
    }
  }
  return bytes;
}

std::int64_t CheckpointReader::verify(
    const CheckpointProgress& progress) const {
  ProgressMeter meter(progress, tensor_bytes());
  std::vector<char> buffer(static_cast<std::size_t>(kChunkBytes));
  std::int64_t bytes = 0;
  for (const auto& [key, tensor] : tensors_) {
    for (const auto& index : tensor.pieces) {
      const auto wanted = all_of(index);
      for (std::int64_t chunk = 0; chunk < chunks_of(wanted.end); ++chunk) {
        const auto count = read_chunk(wanted, chunk, buffer.data());
        bytes += count;
        meter.add(count);
      }
    }
    const auto plan =
        plan::plan_reads(pieces_of(tensor), {0, numel_of(tensor.shape)}, 0);
    SHERD_CHECK(
        plan.missing.empty(), "[ckpt] ", folder_, ": expected all elements of ",
        key.text(), ", found none of ", plan.missing.front().begin, " to ",
        plan.missing.front().end);
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    for (std::size_t file = 0; file < parts_[part].files.size(); ++file) {
      compare_header(part, file);
    }
  }
  return bytes;
}

// Checks that programs that only know safetensors see the same as sherd.
void CheckpointReader::compare_header(
    std::size_t part, std::size_t file) const {
  const auto path = folder_ + "/" + parts_[part].files[file].name;
  const auto mapped = MappedFile::open(path);
  const auto bytes = mapped.value().bytes();
  const auto header =
      parse_header(bytes, static_cast<std::int64_t>(bytes.size()), path);
  std::map<std::string, std::int64_t> offsets;
  for (const auto& tensor : header.tensors) {
    offsets[tensor.name] = header.data_begin + tensor.begin;
  }
  for (const auto& tensor : parts_[part].tensors) {
    if (tensor.file != static_cast<int>(file)) {
      continue;
    }
    const auto found = offsets.find(tensor.name);
    SHERD_CHECK(
        found != offsets.end() && found->second == tensor.offset, "[ckpt] ",
        path, ": expected ", tensor.name, " at byte ", tensor.offset,
        ", as its part says, found ",
        found == offsets.end() ? std::string("none")
                               : str("it at byte ", found->second));
  }
}

std::int64_t CheckpointReader::read_bytes(const ReadRequest& wanted) const {
  std::int64_t bytes = 0;
  std::vector<char> buffer;
  const auto first = wanted.begin / kChunkBytes;
  for (auto chunk = first; chunk < chunks_of(wanted.end); ++chunk) {
    const auto begin = chunk * kChunkBytes;
    const auto end = std::min(begin + kChunkBytes, bytes_of(wanted.tensor));
    if (begin >= wanted.begin && end <= wanted.end) {
      bytes += read_chunk(wanted, chunk, wanted.to + (begin - wanted.begin));
      continue;
    }
    buffer.resize(static_cast<std::size_t>(kChunkBytes));
    bytes += read_chunk(wanted, chunk, buffer.data());
    const auto from = std::max(begin, wanted.begin);
    const auto until = std::min(end, wanted.end);
    std::memcpy(
        wanted.to + (from - wanted.begin), buffer.data() + (from - begin),
        static_cast<std::size_t>(until - from));
  }
  return bytes;
}

std::int64_t CheckpointReader::read_chunk(
    const ReadRequest& wanted, std::int64_t chunk, char* buffer) const {
  const auto begin = chunk * kChunkBytes;
  const auto count = std::min(kChunkBytes, bytes_of(wanted.tensor) - begin);
  pread_all(wanted, wanted.tensor.offset + begin, count, buffer);
  SHERD_CHECK(
      checksum(buffer, static_cast<std::size_t>(count)) ==
          wanted.tensor.checksums[static_cast<std::size_t>(chunk)],
      "[ckpt] ", wanted.path, ": ", wanted.tensor.name, " is damaged in the ",
      count, " bytes at byte ", wanted.tensor.offset + begin,
      "; expected the checksum that its part has");
  return count;
}

void CheckpointReader::pread_all(
    const ReadRequest& wanted,
    std::int64_t at,
    std::int64_t count,
    char* to) const {
  while (count > 0) {
    const auto done =
        ::pread(wanted.file->get(), to, static_cast<std::size_t>(count), at);
    if (done < 0 && errno == EINTR) {
      continue;
    }
    SHERD_CHECK_AS(
        kUnavailable, done > 0, "[ckpt] ", wanted.path, ": reading byte ", at,
        " failed: ", done == 0 ? "the file ends" : std::strerror(errno));
    at += done;
    to += done;
    count -= done;
  }
}

}  // namespace sherd::ckpt
