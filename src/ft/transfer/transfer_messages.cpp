// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_messages.h"

#include <utility>
#include "base/check.h"
#include "ft/wire/fields.h"

namespace sherd::ft::transfer {
namespace {

using wire::FieldReader;
using wire::FieldWriter;

void read_version(net::ByteReader& in) {
  const std::uint16_t version = in.u16("the version");
  if (version != kTransferVersion) {
    in.fail(str("expected version ", kTransferVersion, ", found ", version));
  }
}

template <typename Enum>
Enum read_choice(net::ByteReader& in, const char* what, Enum last) {
  return static_cast<Enum>(in.choice(what, static_cast<std::uint8_t>(last)));
}

template <typename T>
Result<T> finished(net::ByteReader& in, const char* message, T value) {
  if (auto status = in.finish(message); !status.ok()) {
    return status;
  }
  return value;
}

// One digest for each chunk, in the answers that have digests.
void read_digests(net::ByteReader& in, TransferAnswer& answer) {
  const auto count =
      in.count("digests", {.elements_max = kDigestsMax, .element_bytes = 8});
  for (std::size_t i = 0; i < count; ++i) {
    answer.digests.push_back(in.u64("a digest"));
  }
  if (!in.ok()) {
    return;  // chunk_bytes may be 0.
  }
  const auto expected = answer.kind == RequestKind::kFetchSnapshot
      ? chunks_of(answer.bytes, answer.chunk_bytes)
      : 0;
  if (count != expected) {
    in.fail(
        str("expected the digests of ", expected, " chunks, found ", count));
  }
}

}  // namespace

std::string bytes_of(const TransferRequest& request) {
  FieldWriter io;
  auto& out = io.out;
  out.u16(kTransferVersion);
  out.u8(static_cast<std::uint8_t>(request.kind));
  out.u64(request.run);
  out.u32(request.shard_rank);
  fields<FieldWriter>(io, request.state);
  out.u32(request.wait_ms_max);
  return out.take();
}

std::string bytes_of(const Refusal& refusal) {
  net::ByteWriter out;
  out.u8(static_cast<std::uint8_t>(refusal.why));
  out.text(std::string_view(refusal.reason).substr(0, kReasonBytesMax));
  return out.take();
}

std::string bytes_of(const TransferAnswer& answer) {
  FieldWriter io;
  auto& out = io.out;
  out.u16(kTransferVersion);
  out.u8(static_cast<std::uint8_t>(answer.kind));
  fields<FieldWriter>(io, answer.state);
  fields<FieldWriter>(io, answer.commit);
  out.u64(answer.bytes);
  out.u32(answer.chunk_bytes);
  out.count(answer.digests.size());
  for (const auto digest : answer.digests) {
    out.u64(digest);
  }
  return out.take();
}

std::string bytes_of(const ChunkRequest& want) {
  net::ByteWriter out;
  out.u64(want.place);
  return out.take();
}

std::string bytes_of(const Chunk& chunk) {
  net::ByteWriter out;
  out.u64(chunk.place);
  out.u64(chunk.digest);
  out.raw(chunk.bytes);
  return out.take();
}

Result<TransferRequest> request_of(std::string_view bytes) {
  FieldReader io{net::ByteReader(bytes)};
  auto& in = io.in;
  read_version(in);
  TransferRequest request;
  request.kind = read_choice(in, "what is asked for", RequestKind::kFetchSum);
  request.run = in.u64("a run");
  request.shard_rank = in.u32("a rank");
  fields<FieldReader>(io, request.state);
  request.wait_ms_max = in.u32("a time to wait");
  return finished(in, "a request of a transfer", request);
}

Result<Refusal> refusal_of(std::string_view bytes) {
  net::ByteReader in(bytes);
  Refusal refusal;
  refusal.why = read_choice(in, "why it is refused", RefusalReason::kBusy);
  refusal.reason = in.text("a reason", kReasonBytesMax);
  return finished(in, "a refusal of a transfer", std::move(refusal));
}

Result<TransferAnswer> answer_of(std::string_view bytes) {
  FieldReader io{net::ByteReader(bytes)};
  auto& in = io.in;
  read_version(in);
  TransferAnswer answer;
  answer.kind = read_choice(in, "what is answered", RequestKind::kFetchSum);
  fields<FieldReader>(io, answer.state);
  fields<FieldReader>(io, answer.commit);
  answer.bytes = in.u64("a length");
  answer.chunk_bytes = in.u32("the length of a chunk");
  if (answer.chunk_bytes == 0 || answer.chunk_bytes > kChunkBytesMax) {
    in.fail(
        str("expected chunks of 1 to ", kChunkBytesMax, " bytes, found ",
            answer.chunk_bytes));
  }
  read_digests(in, answer);
  return finished(in, "an answer of a transfer", std::move(answer));
}

Result<ChunkRequest> chunk_request_of(std::string_view bytes) {
  net::ByteReader in(bytes);
  ChunkRequest want;
  want.place = in.u64("a place");
  return finished(in, "a wish of a transfer", want);
}

Result<Chunk> chunk_of(std::string_view bytes) {
  net::ByteReader in(bytes);
  Chunk chunk;
  chunk.place = in.u64("a place");
  chunk.digest = in.u64("a digest");
  if (in.left() > kChunkBytesMax) {
    in.fail(
        str("expected a chunk of at most ", kChunkBytesMax, " bytes, found ",
            in.left()));
  }
  chunk.bytes = in.raw("a chunk", in.ok() ? in.left() : 0);
  return finished(in, "a chunk of a transfer", chunk);
}

}  // namespace sherd::ft::transfer
