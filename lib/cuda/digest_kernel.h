#ifndef TORPOR_LIB_CUDA_DIGEST_KERNEL_H_
#define TORPOR_LIB_CUDA_DIGEST_KERNEL_H_

namespace torpor {

// digest.cu as PTX, ended by a zero.
extern const char kDigestPtx[];
constexpr char kDigestFunction[] = "TorporDigest";
constexpr unsigned kDigestThreads = 256;  // of each block

}  // namespace torpor

#endif  // TORPOR_LIB_CUDA_DIGEST_KERNEL_H_
