/** Which words two texts share: a longest common subsequence. */

const MOST = 1500; // words of each text that are compared; the rest counts as different

const words = (text) => text.match(/\s+|[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu) ?? [];

/** Return the lengths of the common subsequences of all pairs of ends, row by row. */
function lengths(left, right) {
  const width = right.length + 1;
  const table = new Uint16Array((left.length + 1) * width);
  for (let row = left.length - 1; row >= 0; row -= 1) {
    for (let column = right.length - 1; column >= 0; column -= 1) {
      const here = row * width + column;
      table[here] =
        left[row] === right[column]
          ? table[here + width + 1] + 1
          : Math.max(table[here + width], table[here + 1]);
    }
  }
  return table;
}

/** Return runs of words as `{text, same}`. */
function runs(list, same) {
  const found = [];
  list.forEach((word, index) => {
    if (found.at(-1)?.same === same[index]) found.at(-1).text += word;
    else found.push({ text: word, same: same[index] });
  });
  return found;
}

/**
 * Compare two texts.
 *
 * @returns {{left: {text: string, same: boolean}[], right: {text: string, same: boolean}[]}}
 */
export function compare(left, right) {
  const [a, b] = [words(left), words(right)];
  const [inA, inB] = [a.map(() => false), b.map(() => false)];
  const [shortA, shortB] = [a.slice(0, MOST), b.slice(0, MOST)];
  const table = lengths(shortA, shortB);
  const width = shortB.length + 1;
  let [row, column] = [0, 0];
  while (row < shortA.length && column < shortB.length) {
    if (shortA[row] === shortB[column]) {
      inA[row] = inB[column] = true;
      row += 1;
      column += 1;
    } else if (table[(row + 1) * width + column] >= table[row * width + column + 1]) row += 1;
    else column += 1;
  }
  return { left: runs(a, inA), right: runs(b, inB) };
}
