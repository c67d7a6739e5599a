// Address space set aside while there is plenty, so that a request that finds no memory can be given up in
// order: unwinding it, and saying so, takes some.
#pragma once

#include <cstdio>
#include <new>

namespace fathom::serve {

// Takes the reserve, unless it is held, and has it given back when new finds no memory: once, to whoever
// comes first. Thread-safe, of the whole process.
void refill_memory_reserve();

// While one lives, its thread's work may be given up: where it finds no memory it gets std::bad_alloc at
// once, and the reserve to unwind in. Other threads use the reserve to go on.
class ExpendableWork {
 public:
  ExpendableWork();
  ~ExpendableWork();
  ExpendableWork(const ExpendableWork&) = delete;
  ExpendableWork& operator=(const ExpendableWork&) = delete;

 private:
  const bool before_;
};

// Whether `fn` ran to its end. One request that takes more memory than there is must not end the process.
template <typename Fn>
bool has_memory_for(const Fn& fn) {
  try {
    const ExpendableWork expendable;
    fn();
    return true;
  } catch (const std::bad_alloc&) {
    std::fputs("out of memory: a request is given up\n", stderr);  // the log would need some
  }
  refill_memory_reserve();
  return false;
}

}  // namespace fathom::serve
