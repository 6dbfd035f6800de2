#ifndef TORPOR_DAEMON_ADMISSION_DRAW_H_
#define TORPOR_DAEMON_ADMISSION_DRAW_H_

#include <string>
#include <utility>

#include "lib/base/units.h"

namespace torpor {

class Admission;

// Bytes that were granted to one extent or image; given back when destroyed. Move-only; not
// thread-safe. The Admission must outlive it.
class Draw {
 public:
  Draw() = default;
  Draw(Draw&& other) noexcept { *this = std::move(other); }
  Draw& operator=(Draw&& other) noexcept;
  ~Draw() { Return(); }

  Bytes size() const { return size_; }
  // A draw of its own for `size` of these bytes.
  Draw Split(Bytes size);
  // The DeviceMemory created the bytes; its measurements count them from there on.
  void MarkCreated() { created_ = true; }
  // The bytes leave with a sleep: unless their reservation holds them, its promise goes with them,
  // and they return to the free budget.
  void Surrender() { surrendered_ = true; }
  void Return();

 private:
  friend class Admission;
  Admission* admission_ = nullptr;
  bool host_ = false;
  Bytes size_{};
  Bytes promised_{};  // as much of it came out of the reservation
  std::string reservation_;
  bool created_ = false;
  bool surrendered_ = false;
};

}  // namespace torpor

#endif  // TORPOR_DAEMON_ADMISSION_DRAW_H_
