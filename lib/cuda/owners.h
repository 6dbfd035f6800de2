#ifndef TORPOR_LIB_CUDA_OWNERS_H_
#define TORPOR_LIB_CUDA_OWNERS_H_

#include <memory>

#include "lib/base/status.h"
#include "lib/base/units.h"
#include "lib/cuda/driver.h"

namespace torpor {

// RAII owners of what Driver hands out. Each is created by a factory, shared (a mapping keeps its
// allocation and its reservation alive, so the order of destruction cannot be wrong), immutable and
// therefore thread-safe. `driver` must outlive them. A destructor cannot fail: it tries twice and
// calls DriverErrorSink with what the driver said.

// Called with the error of a destructor; prints to standard error unless replaced.
using DriverErrorSink = void (*)(const Status& status);
void SetDriverErrorSink(DriverErrorSink sink);

class PhysicalAllocation {
 public:
  static Result<std::shared_ptr<PhysicalAllocation>> Create(Driver& driver, Bytes size);
  static Result<std::shared_ptr<PhysicalAllocation>> Import(Driver& driver, int fd, Bytes size);
  ~PhysicalAllocation();
  PhysicalAllocation(const PhysicalAllocation&) = delete;
  PhysicalAllocation& operator=(const PhysicalAllocation&) = delete;

  Bytes size() const { return size_; }
  MemoryHandle handle() const { return handle_; }
  Result<UniqueFd> Export() const { return driver_.Export(handle_); }

 private:
  PhysicalAllocation(Driver& driver, MemoryHandle handle, Bytes size)
      : driver_(driver), handle_(handle), size_(size) {}
  Driver& driver_;
  const MemoryHandle handle_;
  const Bytes size_;
};

class AddressReservation {
 public:
  static Result<std::shared_ptr<AddressReservation>> Create(Driver& driver, Bytes size);
  ~AddressReservation();
  AddressReservation(const AddressReservation&) = delete;
  AddressReservation& operator=(const AddressReservation&) = delete;

  DeviceAddress address() const { return address_; }
  Bytes size() const { return size_; }

 private:
  AddressReservation(Driver& driver, DeviceAddress address, Bytes size)
      : driver_(driver), address_(address), size_(size) {}
  Driver& driver_;
  const DeviceAddress address_;
  const Bytes size_;
};

// A whole allocation, mapped with access at `offset` of a reservation. If access cannot be set, the
// mapping is taken back and the error returned.
class ScopedMapping {
 public:
  static Result<std::shared_ptr<ScopedMapping>> Create(
      Driver& driver, std::shared_ptr<AddressReservation> reservation, Bytes offset,
      std::shared_ptr<PhysicalAllocation> allocation, Access access);
  ~ScopedMapping();
  ScopedMapping(const ScopedMapping&) = delete;
  ScopedMapping& operator=(const ScopedMapping&) = delete;

  DeviceAddress address() const { return address_; }
  Bytes size() const { return allocation_->size(); }

 private:
  ScopedMapping(Driver& driver, std::shared_ptr<AddressReservation> reservation,
                std::shared_ptr<PhysicalAllocation> allocation, DeviceAddress address)
      : driver_(driver),
        reservation_(std::move(reservation)),
        allocation_(std::move(allocation)),
        address_(address) {}
  Driver& driver_;
  const std::shared_ptr<AddressReservation> reservation_;
  const std::shared_ptr<PhysicalAllocation> allocation_;
  const DeviceAddress address_;
};

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_OWNERS_H_
