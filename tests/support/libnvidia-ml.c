/* A libnvidia-ml.so.1 without a driver: the functions that scaling asks through nvidia-ml-py, over machines described below.
 *
 * FAKE_NVML names the machine. FAKE_NVML_LOG is a file that gets a line per nvmlInit and nvmlShutdown, in place of the
 * seconds that these take on a machine without persistence mode. Signatures, sizes and numbers are those of nvml.h.
 * With -DOLD it lacks what drivers before 455 lack. In all cases it lacks nvmlDeviceGetComputeRunningProcesses_v3, for
 * which nvidia-ml-py raises an error that is no NVMLError. FAKE_NVML_CUDA is the driver's CUDA, 12040 by default.
 * FAKE_NVML_MEMORY is a folder with a file GPU.PID for each process: the bytes that it holds. Without it 1 GiB is used.
 * FAKE_NVML_BYTES is the memory of each GPU, FAKE_NVML_MODE its compute mode (0: Default, 3: Exclusive_Process).
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, NOT_LOADED = 9, MISMATCH = 18 };
enum { P2P_OK, P2P_GPU_NOT_SUPPORTED = 2 };
enum { SWITCH = 2, HOSTBRIDGE = 30, NODE = 40, SYSTEM = 50 };
#define GIB (1ull << 30)

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;

typedef struct {
    const char *name, *kind; /* what nvidia-smi -L calls it; "sxm", "geforce", "bare" (answers nothing that it may refuse) */
    int gpus, major, minor, nvlinks, slices;  /* slices of GPU 0; -1 without MIG mode */
    int init, only; /* what nvmlInit returns; the one GPU that a cgroup lets through, or -1 */
    unsigned long long memory;
    unsigned power_limit_mw, max_clock;
    unsigned long long reasons;
} Machine;

static const struct { const char *name; Machine machine; } MACHINES[] = {
    {"a100", {"NVIDIA A100-SXM4-80GB", "sxm", 8, 8, 0, 12, -1, OK, -1, 80 * GIB, 400000, 1410, 0x4}},
    {"h100", {"NVIDIA H100 80GB HBM3", "sxm", 8, 9, 0, 18, -1, OK, -1, 80 * GIB, 700000, 1980, 0x0}},
    {"hot", {"NVIDIA H100 80GB HBM3", "sxm", 8, 9, 0, 18, -1, OK, -1, 80 * GIB, 700000, 1980, 0x48}},
    {"geforce", {"NVIDIA GeForce RTX 4090", "geforce", 2, 8, 9, 0, -1, OK, -1, 24 * GIB, 450000, 3105, 0x4}},
    {"mig", {"NVIDIA A100-SXM4-80GB", "sxm", 2, 8, 0, 12, 2, OK, -1, 80 * GIB, 400000, 1410, 0x0}},
    {"bare", {"Tesla K80", "bare", 2, 3, 7, 0, -1, OK, -1, 12 * GIB, 0, 0, 0}},
    {"cgroup", {"NVIDIA A100-SXM4-80GB", "sxm", 4, 8, 0, 12, -1, OK, 2, 80 * GIB, 400000, 1410, 0x0}},
    {"mismatch", {"", "sxm", 0, 0, 0, 0, -1, MISMATCH, -1, 0, 0, 0, 0}},
    {"unloaded", {"", "sxm", 0, 0, 0, 0, -1, NOT_LOADED, -1, 0, 0, 0, 0}},
};

/* A handle: GPU `index`, or slice `slice` of it, counted from 0. */
typedef struct { int index, slice; } Device;
static Device devices[16][8];
static const Machine *machine;
static int initialised;

static void note(const char *line) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) {
        fprintf(log, "%s\n", line);
        fclose(log);
    }
}

int nvmlInitWithFlags(unsigned flags) {
    const char *wanted = getenv("FAKE_NVML");
    (void)flags;
    note("init");
    for (unsigned each = 0; wanted && each < sizeof MACHINES / sizeof *MACHINES; each++)
        if (!strcmp(MACHINES[each].name, wanted)) machine = &MACHINES[each].machine;
    if (!machine) return NOT_LOADED;
    if (machine->init != OK) return machine->init;
    for (int gpu = 0; gpu < 16; gpu++)
        for (int slice = 0; slice < 8; slice++) devices[gpu][slice] = (Device){gpu, slice - 1};
    initialised++;
    return OK;
}

int nvmlShutdown(void) {
    note("shutdown");
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return OK;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case NOT_LOADED: return "Driver Not Loaded";
    case MISMATCH: return "Driver/library version mismatch";
    default: return "Error";
    }
}

static int sliced(const Device *device) { return machine->slices >= 0 && device->index == 0; }
static int bare(void) { return !strcmp(machine->kind, "bare"); }
#define ANSWER if (!initialised) return UNINITIALIZED
#define OPTIONAL ANSWER; if (bare()) return NOT_SUPPORTED
#define WHOLE OPTIONAL; if (device->slice >= 0) return NOT_SUPPORTED

static int copy(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return 7;
    strcpy(to, text);
    return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ANSWER;
    return copy(version, length, "550.54.15");
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    ANSWER;
    *version = getenv("FAKE_NVML_CUDA") ? atoi(getenv("FAKE_NVML_CUDA")) : 12040;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ANSWER;
    *count = machine->gpus;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ANSWER;
    if ((int)index >= machine->gpus) return INVALID_ARGUMENT;
    if (machine->only >= 0 && (int)index != machine->only) return NO_PERMISSION;
    *device = &devices[index][0];
    return OK;
}
int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    char text[64];
    ANSWER;
    if (device->slice >= 0)
        snprintf(text, sizeof text, "MIG-%d-%d", device->index, device->slice);
    else
        snprintf(text, sizeof text, "GPU-%08x-0000", device->index + 1);
    return copy(uuid, length, text);
}
int nvmlDeviceGetHandleByUUID(const char *wanted, Device **device) {
    char uuid[64];
    ANSWER;
    for (int gpu = 0; gpu < machine->gpus; gpu++)
        for (int slice = 0; slice <= (sliced(&devices[gpu][0]) ? machine->slices : 0); slice++) {
            nvmlDeviceGetUUID(&devices[gpu][slice], uuid, sizeof uuid);
            if (!strcmp(uuid, wanted)) {
                *device = &devices[gpu][slice];
                return OK;
            }
        }
    return NOT_FOUND;
}
int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    char text[96];
    ANSWER;
    snprintf(text, sizeof text, "%s%s", machine->name, device->slice >= 0 ? " MIG 3g.40gb" : "");
    return copy(name, length, text);
}
int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
    WHOLE;
    memset(pci, 0, sizeof *pci);
    pci->bus = 16 * (device->index + 1);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
/* What living processes hold of a GPU. */
static unsigned long long used(int gpu) {
    const char *folder = getenv("FAKE_NVML_MEMORY");
    unsigned long long sum = 0, bytes;
    DIR *files = folder ? opendir(folder) : NULL;
    if (!files) return GIB;
    for (struct dirent *each; (each = readdir(files));) {
        char path[4096], process[64];
        int index, pid;
        FILE *file;
        if (sscanf(each->d_name, "%d.%d", &index, &pid) != 2 || index != gpu) continue;
        snprintf(process, sizeof process, "/proc/%d", pid);
        snprintf(path, sizeof path, "%s/%s", folder, each->d_name);
        if (access(process, F_OK) || !(file = fopen(path, "r"))) continue;
        if (fscanf(file, "%llu", &bytes) == 1) sum += bytes;
        fclose(file);
    }
    closedir(files);
    return sum;
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    OPTIONAL;
    memory->total = device->slice >= 0 ? machine->memory / 2 : machine->memory;
    if (getenv("FAKE_NVML_BYTES")) memory->total = strtoull(getenv("FAKE_NVML_BYTES"), NULL, 10);
    memory->used = used(device->index);
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return OK;
}
int nvmlDeviceGetComputeMode(Device *device, int *mode) {
    WHOLE;
    *mode = getenv("FAKE_NVML_MODE") ? atoi(getenv("FAKE_NVML_MODE")) : 0;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    OPTIONAL;
    (void)device;
    *major = machine->major;
    *minor = machine->minor;
    return OK;
}

/* ---------------------------------------------------------------- readings */

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *limit_mw) {
    WHOLE;
    *limit_mw = machine->power_limit_mw;
    return OK;
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) {
    WHOLE;
    *mw = machine->power_limit_mw - 1500;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *mj) {
    static unsigned long long used_mj = 5000000000ull; /* more than 32 bits */
    WHOLE;
    used_mj += 1000;
    *mj = used_mj;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *mhz) {
    WHOLE;
    if (type != 1) return INVALID_ARGUMENT;
    *mhz = machine->max_clock;
    return OK;
}
int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz) {
    WHOLE;
    if (type != 1) return INVALID_ARGUMENT;
    *mhz = machine->max_clock - 210;
    return OK;
}
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    WHOLE;
    *rates = (Utilization){97, 41};
    return OK;
}
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    WHOLE;
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = 66;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    WHOLE;
    *reasons = machine->reasons | 0x2; /* application clocks, which nobody counts */
    return OK;
}

/* ---------------------------------------------------------------- links */

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    WHOLE;
    if (!machine->nvlinks) return NOT_SUPPORTED;
    if (link >= 18) return INVALID_ARGUMENT;
    *active = (int)link < machine->nvlinks;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, Pci *pci) {
    WHOLE;
    (void)link;
    memset(pci, 0, sizeof *pci);
    pci->bus = 200;
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device *device, unsigned link, int *type) {
    WHOLE;
    (void)link;
    *type = SWITCH;
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(Device *device, Device *other, int *level) {
    WHOLE;
    if (other->slice >= 0) return NOT_SUPPORTED;
    *level = !strcmp(machine->kind, "geforce") ? HOSTBRIDGE : device->index / 4 == other->index / 4 ? NODE : SYSTEM;
    return OK;
}
int nvmlDeviceGetP2PStatus(Device *device, Device *other, int capability, int *status) {
    WHOLE;
    if (other->slice >= 0) return NOT_SUPPORTED;
    if (capability < 0 || capability > 4) return INVALID_ARGUMENT;
    *status = !strcmp(machine->kind, "geforce") ? P2P_GPU_NOT_SUPPORTED : P2P_OK;
    return OK;
}

/* ---------------------------------------------------------------- CPUs, slices */

/* The first four GPUs are near the CPUs with even numbers, the others near those with odd ones. */
int nvmlDeviceGetCpuAffinity(Device *device, unsigned words, unsigned long *mask) {
    WHOLE;
    for (unsigned word = 0; word < words; word++)
        mask[word] = word ? 0 : device->index < 4 ? 0x5555555555555555ul : 0xAAAAAAAAAAAAAAAAul;
    return OK;
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}
int nvmlDeviceGetCpuAffinityWithinScope(Device *device, unsigned words, unsigned long *mask, unsigned scope) {
    if (scope > 1) return INVALID_ARGUMENT;
    return nvmlDeviceGetCpuAffinity(device, words, mask);
}
int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *next) {
    OPTIONAL;
    if (device->slice >= 0) return INVALID_ARGUMENT;
    if (machine->major < 8 || !strcmp(machine->kind, "geforce")) return NOT_SUPPORTED;
    *now = *next = sliced(device);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    OPTIONAL;
    *count = sliced(device) ? 7 : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    OPTIONAL;
    if (!sliced(device) || (int)index >= machine->slices) return NOT_FOUND;
    *slice = &devices[device->index][index + 1];
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *slice, Device **device) {
    OPTIONAL;
    if (slice->slice < 0) return INVALID_ARGUMENT;
    *device = &devices[slice->index][0];
    return OK;
}
#endif
