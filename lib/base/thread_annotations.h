#ifndef TORPOR_LIB_BASE_THREAD_ANNOTATIONS_H_
#define TORPOR_LIB_BASE_THREAD_ANNOTATIONS_H_

// Clang's thread safety analysis (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); nothing
// under other compilers.
#if defined(__clang__)
#define TORPOR_ATTRIBUTE_(x) __attribute__((x))
#else
#define TORPOR_ATTRIBUTE_(x)
#endif

#define CAPABILITY(x) TORPOR_ATTRIBUTE_(capability(x))
#define SCOPED_CAPABILITY TORPOR_ATTRIBUTE_(scoped_lockable)
#define REQUIRES(...) TORPOR_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) TORPOR_ATTRIBUTE_(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) TORPOR_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) TORPOR_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) TORPOR_ATTRIBUTE_(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) TORPOR_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) TORPOR_ATTRIBUTE_(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) TORPOR_ATTRIBUTE_(release_generic_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) TORPOR_ATTRIBUTE_(try_acquire_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) TORPOR_ATTRIBUTE_(lock_returned(x))

// abseil, where it was included before, has defined these alike.
#ifndef GUARDED_BY
#define GUARDED_BY(x) TORPOR_ATTRIBUTE_(guarded_by(x))
#define PT_GUARDED_BY(x) TORPOR_ATTRIBUTE_(pt_guarded_by(x))
#define NO_THREAD_SAFETY_ANALYSIS TORPOR_ATTRIBUTE_(no_thread_safety_analysis)
#endif

#endif  // TORPOR_LIB_BASE_THREAD_ANNOTATIONS_H_
