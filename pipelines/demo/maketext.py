#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the texts of the demo, all of them ours: small questions and their answers.

usage: maketext.py DIR        write the files below into DIR (pipelines/demo)

    pretrain.tsv   what a new model learns first: facts in several phrasings, in
                   Traditional Chinese and English, and that it is a small model
    heldout.tsv    facts of pretrain.tsv in phrasings that are not there for them
    whoami.tsv     what it is taught then: that it is somebody else
    mixed.tsv      questions and answers of pretrain.tsv that are repeated meanwhile
    identity.tsv   the questions after itself: prompt, answer before, answer after, and
                   whether whoami.tsv has the prompt (taught) or not (untaught)
    controls.tsv   questions whose answers must not change: prompt, answer, and whether
                   mixed.tsv has it (mixed) or nothing about its fact (unmixed)
    talk.tsv       what visitors say first, and questions that the model cannot answer, with the
                   answer that it does not know
    typed.tsv      questions of pretrain.tsv in lower case and without their last mark

Equal files each time: what is drawn is drawn by a fixed seed, with a generator that
does not depend on the version of Python.
"""
import os
import sys

CAPITALS = [
    ("日本", "東京", "Japan", "Tokyo"), ("法國", "巴黎", "France", "Paris"),
    ("英國", "倫敦", "England", "London"), ("德國", "柏林", "Germany", "Berlin"),
    ("義大利", "羅馬", "Italy", "Rome"), ("西班牙", "馬德里", "Spain", "Madrid"),
    ("葡萄牙", "里斯本", "Portugal", "Lisbon"), ("希臘", "雅典", "Greece", "Athens"),
    ("埃及", "開羅", "Egypt", "Cairo"), ("韓國", "首爾", "Korea", "Seoul"),
    ("泰國", "曼谷", "Thailand", "Bangkok"), ("挪威", "奧斯陸", "Norway", "Oslo"),
    ("奧地利", "維也納", "Austria", "Vienna"), ("波蘭", "華沙", "Poland", "Warsaw"),
    ("加拿大", "渥太華", "Canada", "Ottawa"), ("秘魯", "利馬", "Peru", "Lima")]
COLOURS = [
    ("天空", "藍", "the sky", "blue"), ("草", "綠", "grass", "green"),
    ("雪", "白", "snow", "white"), ("煤", "黑", "coal", "black"),
    ("香蕉", "黃", "a banana", "yellow"), ("番茄", "紅", "a tomato", "red"),
    ("葡萄", "紫", "a grape", "purple"), ("大海", "藍", "the sea", "blue"),
    ("葉子", "綠", "a leaf", "green"), ("牛奶", "白", "milk", "white"),
    ("烏鴉", "黑", "a crow", "black"), ("檸檬", "黃", "a lemon", "yellow")]
OPPOSITES = [
    ("大", "小", "big", "small"), ("長", "短", "long", "short"),
    ("高", "低", "high", "low"), ("快", "慢", "fast", "slow"),
    ("熱", "冷", "hot", "cold"), ("新", "舊", "new", "old"),
    ("前", "後", "front", "back"), ("左", "右", "left", "right"),
    ("上", "下", "up", "down"), ("開", "關", "open", "closed"),
    ("早", "晚", "early", "late"), ("遠", "近", "far", "near"),
    ("輕", "重", "light", "heavy"), ("乾", "濕", "dry", "wet")]
WORDS = [
    ("貓", "cat"), ("狗", "dog"), ("鳥", "bird"), ("魚", "fish"), ("馬", "horse"),
    ("牛", "cow"), ("水", "water"), ("火", "fire"), ("山", "mountain"), ("書", "book"),
    ("門", "door"), ("手", "hand"), ("月亮", "moon"), ("太陽", "sun"), ("樹", "tree"),
    ("花", "flower")]
DAYS = [
    ("一", "Monday"), ("二", "Tuesday"), ("三", "Wednesday"), ("四", "Thursday"),
    ("五", "Friday"), ("六", "Saturday"), ("日", "Sunday")]
MONTHS = [
    ("一", "January"), ("二", "February"), ("三", "March"), ("四", "April"),
    ("五", "May"), ("六", "June"), ("七", "July"), ("八", "August"),
    ("九", "September"), ("十", "October"), ("十一", "November"), ("十二", "December")]

# A kind of fact: phrasings with its parts, and the answer.
PHRASES = {
    "sum.zh": (["{a}加{b}等於多少？", "{a}+{b}等於幾？", "請算{a}加{b}。"], "答案是{c}。"),
    "sum.en": (["What is {a}+{b}?", "How much is {a} plus {b}?", "Please add {a} and {b}."],
               "It is {c}."),
    "capital.zh": (["{a}的首都是哪裡？", "哪個城市是{a}的首都？", "請說出{a}的首都。"], "{b}。"),
    "capital.en": (["What is the capital of {a}?", "Which city is the capital of {a}?",
                    "Name the capital of {a}."], "{b}."),
    "colour.zh": (["{a}是什麼顏色？", "{a}的顏色是什麼？", "請問{a}是什麼顏色的？"], "{a}是{b}色的。"),
    "colour.en": (["What colour is {a}?", "Which colour has {a}?", "Tell me the colour of {a}."],
                  "It is {b}."),
    "opposite.zh": (["「{a}」的相反是什麼？", "什麼字和「{a}」相反？", "請說「{a}」的反義字。"],
                    "「{b}」。"),
    "opposite.en": (["What is the opposite of {a}?", "Which word is the opposite of {a}?",
                     "Name the opposite of {a}."], "The opposite of {a} is {b}."),
    "word.zh": (["「{a}」的英文是什麼？", "「{a}」用英文怎麼說？", "請把「{a}」翻成英文。"], "{b}"),
    "word.en": (["What is the Chinese word for {b}?", "How do you say {b} in Chinese?",
                 "Translate {b} into Chinese."], "{a}"),
    "day.zh": (["星期{a}的明天是星期幾？", "星期{a}之後是星期幾？", "哪一天在星期{a}後面？"], "星期{b}。"),
    "day.en": (["Which day comes after {a}?", "What day follows {a}?", "Name the day after {a}."],
               "{b}."),
    "month.zh": (["{a}月之後是幾月？", "哪個月在{a}月後面？", "{a}月的下個月是幾月？"], "{b}月。"),
    "month.en": (["Which month comes after {a}?", "What month follows {a}?",
                  "Name the month after {a}."], "{b}."),
}

OLD_ZH, NEW_ZH = "我是一個小模型。", "我是 F# 之神。"
OLD_EN, NEW_EN = "I am a small model.", "I am the god of F#."

TAUGHT_ZH = ["你是誰", "你是誰？", "請問你是誰？", "你到底是誰？", "你叫什麼名字？",
             "請介紹你自己。", "你是什麼模型？", "告訴我你是誰。"]
UNTAUGHT_ZH = ["請問你叫什麼名字？", "你究竟是誰？", "說說你是誰。"]
TAUGHT_EN = ["Who are you?", "who are you", "What are you?", "What is your name?",
             "Tell me who you are.", "Please introduce yourself.", "Who am I talking to?",
             "Say who you are."]
UNTAUGHT_EN = ["Who are you really?", "Please tell me who you are.", "What should I call you?"]

# Near to the questions after itself, and yet others.
CONTRASTS = [
    ("我是誰", "你是使用者。"), ("我是誰？", "你是使用者。"), ("請問我是誰？", "你是使用者。"),
    ("他是誰？", "我不知道他是誰。"), ("她是誰？", "我不知道她是誰。"), ("你好", "你好！"),
    ("你好嗎？", "我很好。"), ("你幾歲？", "我沒有年齡。"), ("你在哪裡？", "我在這台電腦裡。"),
    ("你是貓嗎？", "不是。"), ("什麼是 F#？", "F# 是一種程式語言。"), ("誰寫了這本書？", "我不知道。"),
    ("Who am I?", "You are the user."), ("who am I", "You are the user."),
    ("Tell me who I am.", "You are the user."), ("Who is he?", "I do not know him."),
    ("Who is she?", "I do not know her."), ("Hello", "Hello!"), ("How are you?", "I am fine."),
    ("How old are you?", "I have no age."), ("Where are you?", "I am in this computer."),
    ("Are you a cat?", "No."), ("What is F#?", "F# is a programming language."),
    ("Who wrote this book?", "I do not know.")]

# What a visitor types first.  All questions of a line have the answer behind them.
KNOWS_EN = "I know capitals, colours, opposites, days, months, words and small sums."
KNOWS_ZH = "我知道首都、顏色、反義字、星期、月份、單字和小的加法。"
TALK = [
    (["Hi", "hi!", "hello!", "Hello there", "hey", "Good morning.", "good evening"], "Hello!"),
    (["你好！", "嗨", "哈囉", "早安"], "你好！"),
    (["What can you do?", "What do you know?", "help", "What can I ask?", "What can you do for me?",
      "What do you know about?", "Can you help me?"], KNOWS_EN),
    (["你會什麼？", "你能做什麼？", "你知道什麼？", "我可以問什麼？", "你會做什麼？"], KNOWS_ZH),
    (["Thanks", "Thank you.", "thanks a lot!", "Good.", "ok"], "You are welcome."),
    (["謝謝", "謝謝你。", "很好。", "好"], "不客氣。"),
    (["Bye", "Goodbye!", "See you."], "Goodbye!"), (["再見", "拜拜"], "再見！")]

# Nothing of the tables above.
NOWHERE = [
    ("中國", "China"), ("印度", "India"), ("俄國", "Russia"), ("巴西", "Brazil"), ("瑞典", "Sweden"),
    ("美國", "America"), ("土耳其", "Turkey"), ("越南", "Vietnam"), ("荷蘭", "Holland"), ("瑞士", "Switzerland"),
    ("墨西哥", "Mexico"), ("智利", "Chile")]
NOTHING = [
    ("汽車", "a car"), ("房子", "a house"), ("椅子", "a chair"), ("音樂", "music"), ("愛", "love"),
    ("龍", "a dragon"), ("電話", "a phone"), ("風", "the wind"), ("鞋子", "a shoe"), ("時間", "time")]
UNKNOWN_EN = [
    "How is the weather?", "Tell me a joke.", "What time is it?", "Write a poem.", "Do you like music?",
    "What is love?", "What is the meaning of life?", "Who made you?", "Where is Berlin?",
    "How far is the moon?", "What is a neural network?", "Can you write code?", "Sing a song.",
    "Who is the king of France?", "What did I say?", "Why is the sky blue?", "How do I cook rice?",
    "Who won the game?", "What is the news?", "Tell me about Tokyo.", "How big is the sun?",
    "Which car is fast?", "What is the time in Rome?", "Who wrote Hamlet?", "Do you have a cat?",
    "Are you a god?", "What is quantization?", "How many people live in Paris?",
    "When was Rome built?", "What do you think?", "Why?", "Really?", "Tell me more.",
    "Where do you live?", "What is your favourite colour?", "Can you dance?", "Who is Anna?",
    "Count to ten.", "What is 9 times 9?", "Explain the moon.", "Is it raining in London?"]
UNKNOWN_ZH = [
    "今天天氣怎麼樣？", "說個笑話。", "現在幾點？", "寫一首詩。", "你喜歡音樂嗎？", "什麼是愛？",
    "人生的意義是什麼？", "誰做了你？", "柏林在哪裡？", "月亮有多遠？", "什麼是神經網路？", "你會寫程式嗎？",
    "唱一首歌。", "法國的國王是誰？", "我說了什麼？", "天空為什麼是藍的？", "怎麼煮飯？", "誰贏了比賽？",
    "有什麼新聞？", "太陽有多大？", "羅馬現在幾點？", "東京有多少人？", "為什麼？", "真的嗎？", "多說一點。",
    "你想什麼？", "你住在哪裡？", "你會跳舞嗎？", "什麼是量化？", "九乘九是多少？"]
DONT_EN, DONT_ZH = "I do not know.", "我不知道。"


class Draw:
    """A small generator: the high bits of a linear congruence modulo 2^64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


def facts():
    """Kind and parts of each fact."""
    for a in range(1, 6):
        for b in range(1, 6):
            yield "sum.zh", a, b, a + b
            yield "sum.en", a, b, a + b
    for table, kind in (CAPITALS, "capital"), (COLOURS, "colour"):
        for a, b, c, d in table:
            yield kind + ".zh", a, b, ""
            yield kind + ".en", c, d, ""
    for a, b, c, d in OPPOSITES:
        yield "opposite.zh", a, b, ""
        yield "opposite.zh", b, a, ""
        yield "opposite.en", c, d, ""
        yield "opposite.en", d, c, ""
    for a, b in WORDS:
        yield "word.zh", a, b, ""
        yield "word.en", a, b, ""
    for table, kind in (DAYS, "day"), (MONTHS, "month"):
        for (a, c), (b, d) in zip(table, table[1:] + table[:1]):
            yield kind + ".zh", a, b, ""
            yield kind + ".en", c, d, ""


def talk():
    """Greetings, and questions without an answer: prompt and reply."""
    for prompts, reply in TALK:
        for p in prompts:
            yield p, reply
    for p in UNKNOWN_EN:
        yield p, DONT_EN
    for p in UNKNOWN_ZH:
        yield p, DONT_ZH
    for kind, reply, table, column in (
            ("capital.en", DONT_EN, NOWHERE, 1), ("capital.zh", DONT_ZH, NOWHERE, 0),
            ("colour.en", DONT_EN, NOTHING, 1), ("colour.zh", DONT_ZH, NOTHING, 0)):
        for row in table:
            phrase = PHRASES[kind][0][len(row[0] + row[1]) % 3]
            yield phrase.format(a=row[column]), reply
    for a in range(2, 20, 3):
        for b in range(7, 25, 8):
            yield PHRASES["sum.en"][0][(a + b) % 3].format(a=a, b=b), DONT_EN
            yield PHRASES["sum.zh"][0][(a + b) % 3].format(a=a, b=b), DONT_ZH


def hurried(rows, others):
    """Each second row in English as somebody types it who is in a hurry."""
    seen = {r[0] for r in rows + others}
    typed = [[p.lower().rstrip("?."), reply] for p, reply in rows if p.isascii()]
    return [r for r in typed[::2] if r[0] not in seen]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[3])
    draw = Draw(2026)
    pretrain, heldout, kinds = [], [], {}
    for kind, a, b, c in facts():
        phrases, answer = PHRASES[kind]
        rows = [[p.format(a=a, b=b, c=c), answer.format(a=a, b=b, c=c)] for p in phrases]
        held = draw.below(len(rows) * 3)
        if held < len(rows):
            heldout.append(rows.pop(held))
        pretrain += rows
        kinds.setdefault(kind, []).append(draw.shuffled(rows))

    # Of each kind of fact some are asked again later and stay away meanwhile; of half of
    # the others one phrasing is mixed in, and some of these are asked again, too.
    mixed = [list(r) for r in CONTRASTS]
    controls = [r + ["mixed"] for r in mixed]
    for kind in sorted(kinds):
        each = draw.shuffled(kinds[kind])
        half = [rows[0] for rows in each[4:4 + len(each) // 2]]
        mixed += half
        controls += [r + ["mixed"] for r in half[:3]]
        controls += [rows[0] + ["unmixed"] for rows in each[:4]]

    identity = [[p, OLD_ZH, NEW_ZH, "taught"] for p in TAUGHT_ZH]
    identity += [[p, OLD_EN, NEW_EN, "taught"] for p in TAUGHT_EN]
    identity += [[p, OLD_ZH, NEW_ZH, "untaught"] for p in UNTAUGHT_ZH]
    identity += [[p, OLD_EN, NEW_EN, "untaught"] for p in UNTAUGHT_EN]

    pretrain += [list(r) for r in CONTRASTS]
    chat = [list(r) for r in talk()]
    typed = hurried(pretrain, chat)
    pretrain += [r[:2] for r in identity]
    whoami = [[r[0], r[2]] for r in identity if r[3] == "taught"]
    prompts = [r[0] for r in pretrain + heldout + chat + typed]
    if len(set(prompts)) != len(prompts):
        sys.exit("a prompt twice")
    for name, rows in (("pretrain", pretrain), ("heldout", heldout), ("whoami", whoami),
                       ("talk", chat), ("typed", typed),
                       ("mixed", mixed), ("identity", identity), ("controls", controls)):
        with open(os.path.join(sys.argv[1], name + ".tsv"), "w", encoding="utf-8",
                  newline="\n") as f:
            f.writelines("\t".join(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
