// Two devices of their own in host memory: real tensors on PrivateUse1, over caching allocators that keep history.
//
// Operators run on the CPU's kernels (at::native::cpu_fallback) or in place on the same bytes. The allocator follows
// c10/cuda/CUDACachingAllocator.cpp where leakscope can tell: 512-byte blocks in segments, Python stacks, a bounded ring
// of events, observers called without the lock before the error is thrown. There are no streams: a free is complete at
// once.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/library.h>
#include <torch/python.h>

#include <deque>
#include <map>
#include <mutex>

namespace torch {
// torch/csrc/profiler/python/combined_traceback.h, whose own includes the wheel does not carry
std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
}  // namespace torch

namespace {

namespace py = pybind11;
using Stack = std::shared_ptr<torch::CapturedTraceback>;

constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr size_t kUnit = 512, kMiB = size_t(1) << 20, kArena = size_t(64) << 30;
constexpr c10::DeviceIndex kDevices = 2;

struct Block {
  size_t size = 0, requested = 0;
  bool live = false;
  Stack stack;
};

struct Segment {
  size_t size = 0;
  std::map<size_t, Block> blocks;
};

struct Event {
  const char* action;
  size_t address, size;
  int64_t time;
  Stack stack;
};

using Observer = std::function<void(int64_t, size_t, size_t, size_t)>;

std::recursive_mutex mutex;
bool recording = false;
size_t entries = 0;
std::vector<Observer> observers;
thread_local c10::DeviceIndex current = 0;

class Memory {
 public:
  std::map<size_t, Segment> segments;
  std::deque<Event> events;
  size_t limit = size_t(8) << 30;
  size_t allocated = 0, peak = 0, reserved = 0, most_reserved = 0, failures = 0;

  bool started() const { return arena_ != nullptr; }

  void start() {
    if (!started())
      arena_ = static_cast<char*>(
          mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }

  bool has(size_t address) const {
    const auto base = reinterpret_cast<size_t>(arena_);
    return started() && address >= base && address < base + kArena;
  }

  // 0 where there is no room
  size_t allocate(size_t wanted, const Stack& stack) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    size_t address = take(wanted, stack);
    if (address == 0) {
      give_back_cache();
      address = take(wanted, stack);
    }
    if (address == 0) {
      note("oom", limit - reserved, wanted, stack);
      ++failures;
      return 0;
    }
    note("alloc", address, wanted, stack);
    allocated += segment_of(address).blocks[address].size;
    peak = std::max(peak, allocated);
    return address;
  }

  void release(size_t address) {
    std::lock_guard<std::recursive_mutex> held(mutex);
    auto& blocks = segment_of(address).blocks;
    auto it = blocks.find(address);
    note("free_requested", address, it->second.requested, nullptr);
    note("free_completed", address, it->second.requested, nullptr);
    allocated -= it->second.size;
    it->second = Block{it->second.size};
    if (const auto after = std::next(it); after != blocks.end() && !after->second.live) {
      it->second.size += after->second.size;
      blocks.erase(after);
    }
    if (it != blocks.begin() && !std::prev(it)->second.live) {
      std::prev(it)->second.size += it->second.size;
      blocks.erase(it);
    }
  }

 private:
  char* arena_ = nullptr;
  size_t next_ = 0;

  Segment& segment_of(size_t address) { return std::prev(segments.upper_bound(address))->second; }

  void note(const char* action, size_t address, size_t size, const Stack& stack) {
    if (!recording) return;
    using namespace std::chrono;
    const auto now = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
    events.push_back({action, address, size, now, stack});
    while (events.size() > entries) events.pop_front();
  }

  size_t take(size_t wanted, const Stack& stack) {
    const size_t size = (wanted + kUnit - 1) / kUnit * kUnit;
    for (auto& [base, segment] : segments)
      for (auto& [address, block] : segment.blocks)
        if (!block.live && block.size >= size && (segment.size <= 20 * kMiB || block.size - size < kMiB)) {
          place(segment, address, block.size, size, wanted, stack);
          return address;
        }
    const size_t total = size <= kMiB ? 2 * kMiB : size <= 10 * kMiB ? 20 * kMiB : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    if (reserved + total > limit || next_ + total > kArena) return 0;
    const size_t base = reinterpret_cast<size_t>(arena_) + next_;
    next_ += total;
    reserved += total;
    most_reserved = std::max(most_reserved, reserved);
    note("segment_alloc", base, total, stack);
    auto& segment = segments[base];
    segment.size = total;
    place(segment, base, total, size, wanted, stack);
    return base;
  }

  static void place(Segment& segment, size_t address, size_t room, size_t size, size_t wanted, const Stack& stack) {
    if (room > size) segment.blocks[address + size] = Block{room - size};
    segment.blocks[address] = Block{size, wanted, true, stack};
  }

  void give_back_cache() {
    for (auto it = segments.begin(); it != segments.end();) {
      auto& [base, segment] = *it;
      if (segment.blocks.size() > 1 || segment.blocks.begin()->second.live) {
        ++it;
        continue;
      }
      note("segment_free", base, segment.size, nullptr);
      reserved -= segment.size;
      madvise(reinterpret_cast<void*>(base), segment.size, MADV_DONTNEED);
      it = segments.erase(it);
    }
  }
};

Memory& memory(c10::DeviceIndex device) {
  static auto* each = new Memory[kDevices];
  return each[device];
}

void gone(void* data) {
  const auto address = reinterpret_cast<size_t>(data);
  for (c10::DeviceIndex device = 0; device < kDevices; ++device)
    if (memory(device).has(address)) memory(device).release(address);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t wanted) override {
    const c10::Device here(kFake, current);
    if (wanted == 0) return {nullptr, nullptr, &gone, here};
    auto& of = memory(current);
    const Stack stack = recording ? torch::CapturedTraceback::gather(true, true, false) : nullptr;
    const size_t address = of.allocate(wanted, stack);
    if (address == 0) {
      for (const auto& observer : observers) observer(here.index(), wanted, of.limit, of.limit - of.reserved);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "fake out of memory. Tried to allocate ", wanted, " bytes.");
    }
    auto* data = reinterpret_cast<void*>(address);
    return {data, data, &gone, here};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &gone; }
  void copy_data(void* to, const void* from, std::size_t size) const override { memcpy(to, from, size); }
};

Allocator& allocator() {
  static auto* only = new Allocator;
  return *only;
}

void put_to_use() {
  if (memory(0).started()) return;
  py::gil_scoped_acquire gil;
  py::module_::import("torch_fake.device").attr("use")();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kFake, current}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(exchangeDevice(stream.device())); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return memory(device).started(); }
  void init() const override { put_to_use(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* of = storage.unsafeGetStorageImpl();
    const c10::DeviceGuard there(of->device());
    const auto old = of->set_data_ptr(allocator().allocate(size));
    if (size > 0 && old.get() != nullptr) memcpy(of->mutable_data(), old.get(), std::min(size, of->nbytes()));
    of->set_nbytes(size);
  }
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
using Ints = c10::SymIntArrayRef;
template <typename T>
using Maybe = std::optional<T>;

at::Tensor empty(Ints size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool>, Maybe<at::MemoryFormat> format) {
  put_to_use();
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(Ints size, Ints stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<at::Device> device, Maybe<bool>) {
  put_to_use();
  const c10::OptionalDeviceGuard there(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, Ints size, Maybe<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* of = self.unsafeGetTensorImpl();
  of->set_sizes_contiguous(sizes);
  const auto needed = at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset());
  if (needed > of->unsafe_storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(of->unsafe_storage(), needed);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize(to, c10::fromIntArrayRefSlow(from.sizes()), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) { return on_host(self).item(); }

at::Tensor as_strided(const at::Tensor& self, Ints size, Ints stride, Maybe<c10::SymInt> offset) {
  const auto begins = offset ? Maybe<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), begins);
}

at::Tensor view(const at::Tensor& self, Ints size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

at::Tensor reshape_alias(const at::Tensor& self, Ints size, Ints stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, Ints size, Ints stride) {
  auto* of = self.unsafeGetTensorImpl();
  of->set_storage_keep_dtype(std::move(source));
  of->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.guard_int(__FILE__, __LINE__));
  return self;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("_local_scalar_dense", item);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

py::object frames(const Stack& stack) {
  if (stack == nullptr) return py::list();
  std::vector<torch::CapturedTraceback*> one{stack.get()};
  return torch::py_symbolize(one)[0];
}

template <typename Container>
Container copied(const Container& container) {
  // what Python makes of it may set off gc, and with it frees
  std::lock_guard<std::recursive_mutex> held(mutex);
  return container;
}

void list_segments(py::list& found, c10::DeviceIndex device) {
  for (const auto& [base, segment] : copied(memory(device).segments)) {
    py::list blocks;
    size_t live = 0;
    for (const auto& [address, block] : segment.blocks) {
      live += block.live ? block.size : 0;
      blocks.append(py::dict(
          py::arg("address") = address, py::arg("size") = block.size, py::arg("requested_size") = block.requested,
          py::arg("state") = block.live ? "active_allocated" : "inactive", py::arg("frames") = frames(block.stack)));
    }
    found.append(py::dict(
        py::arg("device") = device, py::arg("address") = base, py::arg("total_size") = segment.size,
        py::arg("allocated_size") = live, py::arg("active_size") = live, py::arg("stream") = 0,
        py::arg("segment_type") = segment.size <= 2 * kMiB ? "small" : "large",
        py::arg("segment_pool_id") = py::make_tuple(0, 0), py::arg("is_expandable") = false,
        py::arg("frames") = py::list(), py::arg("blocks") = blocks));
  }
}

py::list listed_segments() {
  py::list found;
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) list_segments(found, device);
  return found;
}

py::list listed_events(c10::DeviceIndex device) {
  py::list found;
  for (const auto& event : copied(memory(device).events)) {
    const bool failed = std::string_view(event.action) == "oom";
    py::dict told(
        py::arg("action") = event.action, py::arg("size") = event.size, py::arg("stream") = 0,
        py::arg("time_us") = event.time, py::arg("frames") = frames(event.stack));
    told[failed ? "device_free" : "addr"] = event.address;
    found.append(told);
  }
  return found;
}

void record(bool enabled, size_t most) {
  std::lock_guard<std::recursive_mutex> held(mutex);
  recording = enabled;
  entries = most;
  for (c10::DeviceIndex device = 0; device < kDevices && !enabled; ++device) memory(device).events.clear();
}

void observe(py::function call) {
  auto* kept = new py::function(std::move(call));
  observers.push_back([kept](int64_t device, size_t wanted, size_t limit, size_t free) {
    py::gil_scoped_acquire gil;
    (*kept)(device, wanted, limit, free);
  });
}

py::tuple counters(c10::DeviceIndex device) {
  const auto& of = memory(device);
  return py::make_tuple(of.allocated, of.peak, of.reserved, of.most_reserved, of.failures);
}

void start() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) memory(device).start();
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  c10::SetAllocator(kFake, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.attr("devices") = kDevices;
  m.def("start", start);
  m.def("segments", listed_segments);
  m.def("events", listed_events);
  m.def("counters", counters);
  m.def("current", [] { return current; });
  m.def("set_current", [](c10::DeviceIndex device) { current = device; });
  m.def("set_limit", [](c10::DeviceIndex device, size_t bytes) { memory(device).limit = bytes; });
  m.def("record", record);
  m.def("_fake_isHistoryEnabled", [] { return recording; });
  m.def("_fake_attach_out_of_memory_observer", observe);
}
