// SPDX-License-Identifier: Apache-2.0
//
// DeviceBuffers are PrivateBuffers on a device, together with what orders their use: a stream for
// gathers, one for reductions, and the last use of each place. Thread rule: as for PrivateBuffers;
// streams and LastUse any thread.
#pragma once

#include <mutex>
#include "device/last_use.h"
#include "device/memory.h"
#include "device/stream.h"
#include "exchange/private_buffers.h"

namespace sherd::exchange {

// What makes the memory that gathers and reductions read and write; empty: LibTorch's allocator.
struct DeviceAllocators {
  device::AllocateTensor gathers = {};
  device::AllocateTensor reductions = {};
  device::AllocateTensor across = {};  // Of sums across replicas.
};

struct DeviceBuffers {
  // A null `reductions`: a new stream. A null `across`: there are no sums across replicas.
  DeviceBuffers(
      const ModelSpec& model,
      int rank,
      c10::Device where,
      const device::Stream& reductions = {},
      const device::Stream& across = {},
      DeviceAllocators allocators = {});
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  // The host waits for these streams and the current one; afterwards no use of a place is recorded.
  void synchronize();

  const c10::Device device;
  // Held while a backend allocates, or is given a collective, because NCCL must not register memory
  // and start a collective of one communicator at the same time. Allocators take it themselves.
  std::mutex backend_mu;
  const DeviceAllocators allocators;
  const device::Stream gather_stream;
  const device::Stream reduce_stream;
  const device::Stream across_stream;
  device::LastUse uses;
  device::StreamMemory unit_memory;
  device::StreamMemory gradient_memory;
  PrivateBuffers places;  // The last member: it returns memory to the others.
};

// The place from the first flat of a slot to its last one; some flats may be undefined.
device::Place place_of_slot(const std::vector<at::Tensor>& flats);

}  // namespace sherd::exchange
