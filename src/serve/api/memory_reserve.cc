// A mapping that nobody touches, and the handler that new calls when it finds no memory.
#include "serve/api/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>

namespace fathom::serve {
namespace {

// To destroy a JSON value, its library wants room for a pointer to every value in it, of which a body has up
// to 2^20.
constexpr size_t kReserveBytes = size_t{48} << 20;

std::atomic<void*> reserve{nullptr};
thread_local bool expendable = false;

void give_reserve_back() {
  void* const held = reserve.exchange(nullptr);
  if (held != nullptr) munmap(held, kReserveBytes);
  if (held == nullptr || expendable) throw std::bad_alloc();
}

}  // namespace

void refill_memory_reserve() {
  if (reserve.load() != nullptr) return;
  void* const taken =
      mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (taken == MAP_FAILED) return;  // there will be another occasion
  void* nothing = nullptr;
  if (!reserve.compare_exchange_strong(nothing, taken)) munmap(taken, kReserveBytes);
  std::set_new_handler(give_reserve_back);
}

ExpendableWork::ExpendableWork() : before_(expendable) { expendable = true; }
ExpendableWork::~ExpendableWork() { expendable = before_; }

}  // namespace fathom::serve
