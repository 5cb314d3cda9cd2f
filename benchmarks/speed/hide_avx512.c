/* Preloaded into a process, it hides AVX-512, AVX-VNNI and AMX from every library that asks the processor.

   Linux can make the instruction CPUID fault (arch_prctl(ARCH_SET_CPUID), a setting that threads inherit and that exec
   resets). The handler executes it in place of the program and clears the bits of those extensions (Intel SDM, volume 2A,
   CPUID leaf 07H). Other faults are passed on. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012

static struct sigaction previous;

static long allow_cpuid(long allowed) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static void answer_cpuid(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)registers[REG_RIP];
  if (code[0] != 0x0f || code[1] != 0xa2) { /* not CPUID: fault again, with the handler of before */
    sigaction(SIGSEGV, &previous, NULL);
    return;
  }
  unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX], a, b, c, d;
  allow_cpuid(1);
  __cpuid_count(leaf, subleaf, a, b, c, d);
  allow_cpuid(0);
  if (leaf == 7 && subleaf == 0) {
    b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31); /* AVX512 F ... VL */
    c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);                         /* VBMI, VBMI2, VNNI, BITALG ... */
    d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);           /* AMX and FP16 among them */
  }
  if (leaf == 7 && subleaf == 1) {
    a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23); /* AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA */
    d &= ~(1u << 4 | 1u << 5 | 1u << 10 | 1u << 19); /* AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16, AVX10 */
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide_avx512(void) {
  struct sigaction action = {0};
  action.sa_sigaction = answer_cpuid;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
  if (allow_cpuid(0)) {
    fputs("hide_avx512: this processor or kernel cannot intercept CPUID\n", stderr);
    exit(1);
  }
}
