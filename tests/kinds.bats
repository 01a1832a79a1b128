#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154,SC2016  # output, stderr: set by run; $c is part of a name
# Files and directories of other programs: each is named as what it is, with the line that helps.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    cp "$HERE/vectors/tokenizer-small.json" tokenizer.json
    printf '1 2 3 4\n5 6 7\n' >ids
    tokenize -q --input ids -o ids.tok ids
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
    datpack -q --init 3 --config config.json -o model.safetensors
    python3 - <<'PY'
import bz2, gzip, lzma, json, pathlib, struct, tarfile, zipfile
def put(name, data):
    pathlib.Path(name).write_bytes(data)
put("x.parquet", b"PAR1\x15\x04\x15\x12" + bytes(80) + b"PAR1")
put("x.feather", b"ARROW1\0\0\xff\xff\xff\xff" + bytes(80))
put("x.arrow", struct.pack("<iIIHH", -1, 240, 16, 0, 10) + bytes(240))
put("x.jsonl.gz", gzip.compress(b'{"text":"a"}\n'))
put("noname", gzip.compress(b'{"text":"a"}\n'))
put("x.tar.gz", gzip.compress(b'{"text":"a"}\n'))
put("x.jsonl.zst", b"\x28\xb5\x2f\xfd\x04\x18\x19\0\0abc\n" + bytes(40))
put("x.jsonl.xz", lzma.compress(b'{"text":"a"}\n'))
put("x.jsonl.bz2", bz2.compress(b'{"text":"a"}\n'))
with tarfile.open("x.tar", "w") as t:
    t.add("ids")
for name in "m.pt", "pytorch_model.bin", "layer_0000.pt":
    with zipfile.ZipFile(name, "w") as z:
        z.writestr("archive/data.pkl", b"\x80\x02}q\0.")
with zipfile.ZipFile("x.zip", "w") as z:
    z.writestr("a.txt", "text")
put("old.bin", b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + bytes(40))
pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 123\n" % (b"ab" * 32)
put("p.safetensors", pointer)
put("p.dat", pointer)
put("p.json", pointer)
put("x.mp3", b"ID3\x04\0\0\0\0\x1f\x76" + bytes(80))
put("x.mp4", b"\0\0\0\x18ftypmp42" + bytes(80))
put("x.png", b"\x89PNG\r\n\x1a\n" + bytes(80))
put("utf16.jsonl", '{"text":"a"}\n'.encode("utf-16"))
pathlib.Path("hf").mkdir()
put("hf/config.json", pathlib.Path("config.json").read_bytes())
put("hf/model.safetensors", pointer)
put("page.safetensors", b"<!DOCTYPE html>\n<html><body>Not Found</body></html>\n")
def tensors(name, names):
    h = {n: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(names)}
    text = json.dumps(h).encode()
    text += b" " * (-len(text) % 8)
    put(name, struct.pack("<Q", len(text)) + text + bytes(8 * len(names)))
q = "model.layers.0.self_attn.q_proj"
tensors("lora.safetensors", ["base_model.model.%s.lora_%s.weight" % (q, x) for x in "AB"])
tensors("nf4.safetensors", [q + ".weight" + x for x in ("", ".absmax", ".quant_map")])
tensors("awq.safetensors", [q + x for x in (".qweight", ".qzeros")])
tensors("fp8.safetensors", [q + x for x in (".weight", ".weight_scale_inv")])
def directory(name, *leaves):
    for leaf in leaves:
        p = pathlib.Path(name, leaf)
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_bytes(b"{}")
directory("saved", "dataset_info.json", "state.json", "data-00000-of-00001.arrow")
directory("splits", "dataset_dict.json", "train/state.json")
directory("hub", "README.md", "data/train-00000-of-00001.parquet")
directory("rows", "train.parquet")
directory("adapter", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json")
directory("torch", "config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json")
directory("cache", "refs/main", "blobs/x", "snapshots/abc/config.json")
directory("gguf", "README.md", "m-f16.gguf")
directory("trainer", "checkpoint-20/config.json", "checkpoint-40/config.json", "all_results.json")
directory("texts", "b.jsonl", "a.jsonl")
PY
}

setup() {
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    cp -r "$IN"/* .
}

# each_reader WORDS PATH: whatever reads tensors says so.
each_reader()
{
    refuse "$2: $1" datcat "$2"
    refuse "$2: $1" datpack --to dat -o out.dat "$2"
    refuse "$2: $1" nvquant -o out.dat "$2"
    refuse "$2: $1" generate -p x "$2"
    refuse "$2: $1" trainstep -d ids.tok "$2"
    refuse "$2: $1" generate --score ids.tok --kl-model "$2" model.safetensors
}

@test "a file of another program in place of a model or tensors is named as what it is" {
    local path words
    while IFS='|' read -r path words; do
        each_reader "is $words: expected a model" "$path"
    done <<'EOT'
x.parquet|a Parquet file
x.feather|a file of Arrow (Feather)
x.arrow|a file of Arrow
x.jsonl.gz|compressed by gzip
x.jsonl.zst|compressed by zstd
x.jsonl.xz|compressed by xz
x.jsonl.bz2|compressed by bzip2
x.zip|a zip archive
x.tar|an archive of tar
x.mp3|a sound (MP3)
x.mp4|a film or a sound (MP4)
x.png|an image (PNG)
m.pt|a file of PyTorch (a zip archive)
pytorch_model.bin|a file of PyTorch (a zip archive)
layer_0000.pt|a layer that a TorchSharp script has saved
old.bin|an old file of PyTorch (a pickle)
p.safetensors|a pointer of git-lfs, not the file itself
p.dat|a pointer of git-lfs, not the file itself
page.safetensors|a web page
config.json|a file that belongs to a model
saved|a datasets directory
splits|a datasets directory with several splits
hub|a directory of Parquet files
adapter|a LoRA adapter, not a whole model
torch|a model in files of PyTorch (pytorch_model.bin)
cache|a repository in the cache of Hugging Face
gguf|a directory without a model.safetensors
trainer|a directory without a model.safetensors
EOT
    refuse "<stdin>: is a file of PyTorch * from safetensors.torch import save_file" datcat - <m.pt
}

@test "a text that has the letters of another kind where that has them is a text" {
    python3 - <<'PY'
row = b'{"text":"' + b"a" * 300 + b'"}\n'
open("tar", "wb").write(row[:257] + b"ustar" + row[262:])
open("parquet", "w").write("PAR1 is what a file begins with\n")
open("zip", "w").write("BZh9 is what another begins with\n")
PY
    run -0 tokenize -t tokenizer.json --input jsonl -o out.tok tar
    run -0 tokenize -t tokenizer.json --input lines -o lines.tok parquet zip
    datcat out.tok lines.tok >/dev/null
}

@test "the line that helps: a command, with the name of the file in it" {
    refuse "; gzip -d x.jsonl.gz unpacks it" datcat x.jsonl.gz
    refuse "; gzip -dc <noname >NEW unpacks it" datcat noname
    refuse "; tar -xf x.tar.gz unpacks it" datcat x.tar.gz
    refuse "; xz -d x.jsonl.xz unpacks it" datcat x.jsonl.xz
    refuse "; unzip x.zip unpacks it" datcat x.zip
    refuse "; git -C . lfs pull fetches the file" datcat p.safetensors
    refuse "; git -C $PWD lfs pull fetches the file" datcat "$PWD/p.dat"
    refuse "no output: expected -o new.tok?" tokenize -t tokenizer.json texts/a.jsonl new.tok
    refuse "begin from the last .dat that was exported" datcat layer_0000.pt
    refuse "; it holds m-f16.gguf: name that instead" generate -p x gguf/
    refuse "; it holds checkpoint-40: name that instead" generate -p x trainer
    refuse "; name the directory below cache/snapshots" generate -p x cache/
    refuse "M.from_pretrained('adapter', torch_dtype='auto').merge_and_unload().save_pretrained('adapter-merged')" \
        generate -p x adapter/
    # Python can read the commands, and they name the file, if its name needs no quotes.
    local path
    mv x.parquet 'a "b" $c.parquet'
    cp 'a "b" $c.parquet' x.parquet
    for path in x.parquet x.feather x.arrow saved splits hub rows m.pt old.bin torch adapter 'a "b" $c.parquet'; do
        run -2 datcat "$path"
        [[ $output =~ 'python3 -c "'([^\"]*)'"' ]]
        python3 -c 'import ast, sys; ast.parse(sys.argv[1])' "${BASH_REMATCH[1]}"
        [[ ${BASH_REMATCH[1]} == *"'$path"* || ${BASH_REMATCH[1]} == *"'FILE'"* ]]
    done
    [[ ${BASH_REMATCH[1]} == *"'FILE'"* ]]
}

@test "a data set of another program in place of text or samples" {
    local path words
    while IFS='|' read -r path words; do
        refuse "$path: is $words: expected JSONL, CSV, TSV, lines of text or ids; * writes JSONL" tokenize -o out.tok "$path"
        refuse "$path: is $words: expected a .tok of samples * writes JSONL" trainstep -d "$path" start.ckpt
        refuse "$path: is $words: expected a .tok of samples" trainstep -d ids.tok --eval "$path" start.ckpt
        refuse "$path: is $words: expected a .tok of samples" generate --score "$path" model.safetensors
    done <<'EOT'
x.parquet|a Parquet file
x.feather|a file of Arrow (Feather)
x.arrow|a file of Arrow
saved|a datasets directory
splits|a datasets directory with several splits
hub|a directory of Parquet files
EOT
    refuse "x.jsonl.gz: is compressed by gzip: expected JSONL * gzip -d x.jsonl.gz unpacks it" tokenize -o out.tok x.jsonl.gz
    refuse "utf16.jsonl: is a text in UTF-16: expected JSONL * iconv -f UTF-16 -t UTF-8 <utf16.jsonl >NEW makes it UTF-8" \
        tokenize -o out.tok utf16.jsonl
    refuse "hf/model.safetensors: is a pointer of git-lfs, not the file itself" datcat hf
    refuse "x.jsonl.gz: is compressed by gzip: expected a .tok" trainstep -d x.jsonl.gz start.ckpt
    refuse "m.pt: is a file of PyTorch (a zip archive): expected JSONL" tokenize -o out.tok m.pt
    refuse "texts: is a directory: expected JSONL, CSV, TSV, lines of text or ids; name its files: texts/*.jsonl" \
        tokenize -o out.tok texts
    mkdir model
    cp model.safetensors config.json tokenizer.json model
    refuse "model/: is a model directory: expected JSONL * -t model takes its tokenizer" tokenize -o out.tok model/
    refuse "model.safetensors: is a file of tensors (safetensors): expected JSONL" tokenize -o out.tok model.safetensors
    # A stream, too; its name is not known.
    refuse "<stdin>: is a Parquet file: expected JSONL" tokenize -o out.tok <x.parquet
    refuse "is compressed by gzip: expected a .tok" trainstep start.ckpt <x.jsonl.gz
    # Texts that begin like one of these are texts.
    printf 'BZh is no archive\nPAR is no file\n' >lines.txt
    tokenize -q -o lines.tok lines.txt
    [ -s lines.tok ]
    printf '<html> is a line\n' >lines.txt
    tokenize -q -f -o lines.tok lines.txt
}

@test "in place of a tokenizer" {
    refuse "p.json: is a pointer of git-lfs, not the file itself: expected a tokenizer.json" \
        tokenize -t p.json -o out.tok texts/a.jsonl
    refuse "p.json: is a pointer of git-lfs" generate -t p.json -p x model.safetensors
    cp p.json tokenizer.json
    refuse "tokenizer.json: is a pointer of git-lfs" generate -p x model.safetensors
    refuse "x.zip: is a zip archive: expected a tokenizer.json" tokenize -t x.zip -o out.tok texts/a.jsonl
    refuse "model.safetensors: is a file of tensors (safetensors): expected a tokenizer.json" \
        generate -t model.safetensors -p x model.safetensors
    refuse "config.json: is a file that belongs to a model: expected a tokenizer.json; it may be in the same directory" \
        tokenize -t config.json -o out.tok texts/a.jsonl
    refuse "8: No such file or directory: expected a tokenizer.json; -j 8 sets the number of threads" \
        generate -t 8 -p x model.safetensors
    refuse "Qwen/Qwen3-4B: No such file or directory: expected a tokenizer.json; * hf download Qwen/Qwen3-4B --local-dir Qwen3-4B" \
        tokenize -t Qwen/Qwen3-4B -o out.tok texts/a.jsonl
}

@test "the name of a repository that is not here names hf download" {
    local words='No such file or directory: expected a model * if it is a repository of Hugging Face, hf download '
    each_reader "$words" Qwen/Qwen3-0.6B
    refuse 'hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B fetches it' generate -p x Qwen/Qwen3-0.6B
    refuse 'hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B fetches it' generate -p x hf:Qwen/Qwen3-0.6B
    refuse 'hf download HF4/ultra_chat --repo-type dataset --local-dir ultra_chat fetches it' tokenize -o out.tok HF4/ultra_chat
    refuse 'hf download HF4/ultra_chat --repo-type dataset' trainstep -d HF4/ultra_chat start.ckpt
    refuse 'https://huggingface.co/Qwen/Qwen3-4B: is an address' generate -p x https://huggingface.co/Qwen/Qwen3-4B
    # A file in a directory, one with a suffix, and one below two directories are no repositories.
    local path
    mkdir here
    for path in here/model other/run.ckpt other/model.safetensors a/b/c model ./a/b ../a/b a/ /a; do
        run -2 --separate-stderr datcat "$path"
        [[ $stderr == *': No such file or directory'*': expected a model or another file of tensors'* ]] || { echo "$path: $stderr" && false; }
    done
}

@test "an adapter, and quantizations that are not read, by the names of their tensors" {
    local f words
    for f in lora nf4 awq fp8; do
        case $f in
        lora) words='is of a LoRA adapter: expected a whole model; * .merge_and_unload().save_pretrained(' ;;
        nf4) words='.absmax": is of bitsandbytes (NF4 or FP4): expected f32, bf16, f16 or NVFP4' ;;
        awq) words='.qzeros": is of GPTQ or AWQ: expected f32, bf16, f16 or NVFP4' ;;
        fp8) words='.weight_scale_inv": is of FP8 in blocks: expected f32, bf16, f16 or NVFP4' ;;
        esac
        refuse "$words" generate -p x $f.safetensors
        refuse "$words" trainstep -d ids.tok $f.safetensors
        refuse "$words" nvquant -o out.dat $f.safetensors
        refuse "$words" datpack --to ckpt -o out.ckpt $f.safetensors
        # Tensors are tensors to who only looks at them or copies them.
        datcat -l $f.safetensors >names
        [ "$(wc -l <names)" -ge 2 ]
        datpack -q -f -o copy.safetensors $f.safetensors
        cmp <(datcat -l copy.safetensors) names
        rm copy.safetensors names
    done
}
