// SPDX-License-Identifier: Apache-2.0
#include "ckpt/reader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <system_error>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/mapped_file.h"
#include "ckpt/dtypes.h"
#include "ckpt/part_writer.h"
#include "ckpt/safetensors.h"
#include "plan/checkpoint_reads.h"

namespace sherd::ckpt {
namespace {

std::string content_of(const std::string& path) {
  return std::string(MappedFile::open(path).value().bytes());
}

// A quarter of the descriptors that the process may have.
std::size_t files_kept_max() {
  rlimit limit = {};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::max<std::size_t>(1, known ? limit.rlim_cur / 4 : 0);
}

bool are_too_many(int error) { return error == EMFILE || error == ENFILE; }

void check_size(
    const Descriptor& file, const std::string& path, std::int64_t bytes) {
  struct stat facts = {};
  SHERD_CHECK(
      ::fstat(file.get(), &facts) == 0 && S_ISREG(facts.st_mode) &&
          facts.st_size == bytes,
      "[ckpt] ", path, ": expected a file of ", bytes, " bytes, found ",
      S_ISREG(facts.st_mode) ? str(facts.st_size, " of them")
                             : std::string("no regular file"));
}

std::string text_of(const TensorInfo& tensor, std::int64_t offset) {
  return str(
      tensor.name, " of ", tensor.dtype, " and shape ",
      at::IntArrayRef(tensor.shape), " at byte ", offset);
}

// Checks that programs that only know safetensors see the same as sherd.
void compare_header(
    const PartManifest& part, std::size_t file, const std::string& path) {
  const auto mapped = MappedFile::open(path);
  const auto bytes = mapped.value().bytes();
  const auto header =
      parse_header(bytes, static_cast<std::int64_t>(bytes.size()), path);
  std::map<std::string, TensorInfo> infos;
  for (const auto& tensor : header.tensors) {
    infos[tensor.name] = tensor;
  }
  std::vector<SavedTensor> saved;
  for (const auto& tensor : part.tensors) {
    if (tensor.file != static_cast<int>(file)) {
      continue;
    }
    const auto expected = info_of(tensor);
    const auto found = infos.find(tensor.name);
    SHERD_CHECK(
        found != infos.end() &&
            header.data_begin + found->second.begin == tensor.offset &&
            found->second.dtype == expected.dtype &&
            found->second.shape == expected.shape,
        "[ckpt] ", path, ": expected ", text_of(expected, tensor.offset),
        ", as its part says, found ",
        found == infos.end()
            ? std::string("none")
            : text_of(found->second, header.data_begin + found->second.begin));
    saved.push_back(tensor);
  }
  SHERD_CHECK(
      header.metadata == metadata_of(saved), "[ckpt] ", path,
      ": expected the metadata of what its part says is in it, found others");
}

}  // namespace

// Opens files for reading and keeps as many of them open as leaves the process most of its
// descriptors: a checkpoint may have more files than a process may have open. Thread rule: any
// thread.
class CheckpointReader::OpenFiles {
 public:
  // Opens the file unless it is open; it stays open at least while the caller has it. Throws Error,
  // naming the path: kUnavailable when it cannot be opened, kFailedPrecondition when that is
  // because too many others are open, and kInvalidArgument when it is no regular file of so many
  // bytes.
  std::shared_ptr<const Descriptor> open(
      const std::string& path, std::int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = files_.find(path); found != files_.end()) {
      return found->second;
    }
    while (files_.size() >= kept_max_) {
      close_oldest();
    }
    auto file = std::make_shared<const Descriptor>(opened(path));
    check_size(*file, path, bytes);
    // Ranges are read mostly in order: the kernel may read further ahead.
    (void)::posix_fadvise(file->get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    files_.emplace(path, file);
    order_.push_back(path);
    return file;
  }

 private:
  // Makes room by closing others where descriptors are short.
  Descriptor opened(const std::string& path) {
    for (;;) {
      Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      const int error = file.open() ? 0 : errno;
      if (are_too_many(error) && !files_.empty()) {
        close_oldest();
        continue;
      }
      if (error != 0) {
        throw Error(
            str("[ckpt] ", path,
                ": expected a file of this checkpoint, opening it failed: ",
                std::strerror(error)),
            are_too_many(error) ? ErrorCode::kFailedPrecondition
                                : ErrorCode::kUnavailable);
      }
      return file;
    }
  }

  void close_oldest() {
    files_.erase(order_.front());
    order_.pop_front();
  }

  const std::size_t kept_max_ = files_kept_max();
  std::mutex mutex_;
  // Both guarded by mutex_.
  std::map<std::string, std::shared_ptr<const Descriptor>> files_;
  // The names in `files_`, the first that was opened first.
  std::deque<std::string> order_;
};

// A range of bytes of one saved tensor.
struct CheckpointReader::ReadRequest {
  // Returns the number of bytes read: those wanted, rounded up to whole chunks.
  std::int64_t read() const {
    std::int64_t bytes = 0;
    std::vector<char> buffer;
    const auto first = begin / kChunkBytes;
    for (auto chunk = first; chunk < chunks_of(end); ++chunk) {
      const auto chunk_begin = chunk * kChunkBytes;
      const auto chunk_end =
          std::min(chunk_begin + kChunkBytes, bytes_of(tensor));
      if (chunk_begin >= begin && chunk_end <= end) {
        bytes += read_chunk(chunk, to + (chunk_begin - begin));
        continue;
      }
      buffer.resize(static_cast<std::size_t>(kChunkBytes));
      bytes += read_chunk(chunk, buffer.data());
      const auto from = std::max(chunk_begin, begin);
      const auto until = std::min(chunk_end, end);
      std::memcpy(
          to + (from - begin), buffer.data() + (from - chunk_begin),
          static_cast<std::size_t>(until - from));
    }
    return bytes;
  }

  // Reads and verifies one chunk.
  std::int64_t read_chunk(std::int64_t chunk, char* buffer) const {
    const auto from = chunk * kChunkBytes;
    const auto count = std::min(kChunkBytes, bytes_of(tensor) - from);
    pread_all(tensor.offset + from, count, buffer);
    SHERD_CHECK(
        digest_of(buffer, static_cast<std::size_t>(count)) ==
            tensor.checksums[static_cast<std::size_t>(chunk)],
        "[ckpt] ", path, ": ", tensor.name, " is damaged in the ", count,
        " bytes at byte ", tensor.offset + from,
        "; expected the checksum that its part has");
    return count;
  }

  void pread_all(std::int64_t at, std::int64_t count, char* into) const {
    while (count > 0) {
      const auto done =
          ::pread(file->get(), into, static_cast<std::size_t>(count), at);
      if (done < 0 && errno == EINTR) {
        continue;
      }
      SHERD_CHECK_AS(
          kUnavailable, done > 0, "[ckpt] ", path, ": reading byte ", at,
          " failed: ", done == 0 ? "the file ends" : std::strerror(errno));
      at += done;
      into += done;
      count -= done;
    }
  }

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
            digest_of(text) == file.checksum,
        "[ckpt] ", part_path, ": expected ", file.bytes,
        " bytes with the checksum that checkpoint.json has, found ",
        text.size(), " others");
    parts_.push_back(parse_part(text, part_path));
  }
  // So that a file that is missing or cut is noticed before any tensor is read.
  for (const auto& part : parts_) {
    for (const auto& file : part.files) {
      (void)files_->open(folder_ + "/" + file.name, file.bytes);
    }
  }
  collect();
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::collect() {
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    for (const auto& saved : parts_[part].tensors) {
      auto& tensor = tensors_[{saved.section, saved.name}];
      if (tensor.pieces.empty()) {
        tensor.dtype = saved.dtype;
        tensor.shape = saved.shape;
      }
      SHERD_CHECK(
          tensor.dtype == saved.dtype && tensor.shape == saved.shape, "[ckpt] ",
          folder_, "/", manifest_.parts[part].name, ": ", saved.section, " ",
          saved.name, " has another dtype or shape than in ",
          manifest_.parts[tensor.pieces.front().part].name);
      tensor.pieces.push_back({.part = part, .saved = &saved});
    }
  }
}

std::vector<plan::SavedPiece> CheckpointReader::pieces_of(
    const StoredTensor& tensor) const {
  std::vector<plan::SavedPiece> pieces;
  for (const auto& piece : tensor.pieces) {
    pieces.push_back(
        {.range = piece.saved->range, .file = static_cast<int>(piece.part)});
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
    bytes += wanted.read();
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
    const StoredTensor::Piece& piece) const {
  const auto& file =
      parts_[piece.part].files[static_cast<std::size_t>(piece.saved->file)];
  const auto path = folder_ + "/" + file.name;
  return {
      .tensor = *piece.saved,
      .path = path,
      .file = files_->open(path, file.bytes),
      .end = bytes_of(*piece.saved)};
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
    for (const auto& piece : tensor.pieces) {
      const auto wanted = all_of(piece);
      for (std::int64_t chunk = 0; chunk < chunks_of(wanted.end); ++chunk) {
        const auto count = wanted.read_chunk(chunk, buffer.data());
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
  for (const auto& part : parts_) {
    for (std::size_t file = 0; file < part.files.size(); ++file) {
      compare_header(part, file, folder_ + "/" + part.files[file].name);
    }
  }
  return bytes;
}

}  // namespace sherd::ckpt
