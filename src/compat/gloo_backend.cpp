// SPDX-License-Identifier: Apache-2.0
#include "compat/gloo_backend.h"

#include <pthread.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace sherd::compat {

struct GlooDevice {
  std::shared_ptr<::gloo::transport::Device> device;
};

namespace {

// While it lives, new threads have SCHED_BATCH: one that wakes up waits until a core is free, or for
// its turn, instead of interrupting what runs. Without it, Gloo's I/O thread interrupts the thread
// that has just sent something and holds the lock of the connection; it then polls for that lock and
// keeps the core until its time slice is over.
class BatchThreads {
 public:
  BatchThreads() {
    const sched_param batch = {};
    active_ =
        ::pthread_getschedparam(::pthread_self(), &policy_, &param_) == 0 &&
        policy_ == SCHED_OTHER &&
        ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &batch) == 0;
  }
  ~BatchThreads() {
    if (active_) {
      ::pthread_setschedparam(::pthread_self(), policy_, &param_);
    }
  }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  int policy_ = 0;
  sched_param param_ = {};
  bool active_ = false;
};

}  // namespace

std::shared_ptr<GlooDevice> make_gloo_device(const GlooAddress& address) {
  using Gloo = c10d::ProcessGroupGloo;
  auto made = std::make_shared<GlooDevice>();
  const BatchThreads its_thread;
  if (!address.address.empty()) {
    made->device = Gloo::createDeviceForHostname(address.address);
  } else if (!address.network_interface.empty()) {
    made->device = Gloo::createDeviceForInterface(address.network_interface);
  } else {
    made->device = Gloo::createDefaultDevice();
  }
  return made;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.connect_deadline);
  gloo_options->threads = 1;
  gloo_options->devices.push_back(options.device->device);
  auto backend = c10::make_intrusive<Gloo>(store, rank, size, gloo_options);
  backend->setTimeout(options.wait_deadline);
  return backend;
}

}  // namespace sherd::compat
