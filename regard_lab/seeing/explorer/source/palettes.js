// Colour tables of 256 entries, red green blue, as matplotlib has them; a test compares each entry.
export const cividis = table(
  "ACJNACNPACNQACRSACVUACZVACZXACdZAChbAChcACleACpgACpiACtkACxmACxnAC1pAC5rAC9tAC9vADBwADBwADFwADFwBDJwCDNwCzNwDj"
  + "RwETVvFDZvFjZvGDdvGjhvHDhuHTluHzpuITtuIjtuJDxuJT1tJz1tKD5tKj9tKz9tLEBtLkFsL0JsMEJsMUNsMkRsNERsNUVsNkZsN0ZsOEds"
  + "OUhsOkhrO0lrPUprPktrP0trQExrQU1rQk1rQ05rRE9rRU9rRlBrR1FrSFFrSVJrSlNrS1RsTFRsTVVsTlZsTlZsT1dsUFhsUVhsUllsU1psVF"
  + "psVVttVlxtV11tWF1tWV5tWV9tWl9tW2BuXGFuXWFuXmJuX2NuYGRuYWRvYWVvYmZvY2ZvZGdvZWhwZmlwZ2lwaGpwaGtxaWtxamxxa21xbG1y"
  + "bW5ybm9ybnBzb3BzcHFzcXJzcnN0c3N0dHR1dHV1dXV1dnZ2d3d2eHh2eXh3eXl3enp3e3t3fHt4fXx4fn14f314gH54gX94goB4g4B4hIF4hY"
  + "J4hYN4hoN4h4R4iIV4iYZ4ioZ4i4d4jIh4jYl4jol4j4p3kIt3kYx3kox3k413lI53lY93lo93l5B2mJF2mZJ2mpN2m5N2nJR2nZV1npZ1n5Z1"
  + "oJd1oZh0opl0o5p0pJp0pZtzppxzp51zqJ5zqZ5yqp9yq6ByrKFxraJxrqJxr6NwsKRwsaVwsqZvs6ZvtKdvtahutqlut6ptuKttuattuqxsu6"
  + "1svK5rva9rvrBqv7BqwbFpwrJpw7NoxLRoxbVnxrVnx7ZmyLdlybhlyrlky7pkzLtjzbxizrxiz71h0L5g0r9g08Bf1MFe1cJe1sNd18Nc2MRb"
  + "2cVa2sZa28dZ3MhY3slX38pW4MtV4cxU4sxT481S5M5R5c9Q5tBP6NFO6dJN6tNM69RL7NVK7dZI7tdH79hG8dlE8tpD89pC9NtA9dw/9t09+N"
  + "47+d86+uA4++E2/eI0/eMz/eU0/eY2/ec3"
);

export const viridis = table(
  "RAFURAJVRANXRQVYRQZaRQhbRglcRgteRgxfRg5hRw9iRxFjRxJlRxRmRxVnRxZpRxhqSBlrSBpsSBxuSB1vSB5wSCBxSCFySCJzSCN0RyV1Ry"
  + "Z2Ryd3Ryh4Ryp5Ryt6Ryx7Ri18Ri98RjB9RjF+RTJ/RTR/RTWARTaBRDeBRDmCQzqDQzuDQzyEQj2EQj6FQkCFQUGGQUKGQEOHQESHP0WHP0eI"
  + "PkiIPkmJPUqJPUuJPUyJPE2KPE6KO1CKO1GKOlKLOlOLOVSLOVWLOFaLOFeMN1iMN1mMNlqMNluMNVyMNV2MNF6NNF+NM2CNM2GNMmKNMmONMW"
  + "SNMWWNMWaNMGeNMGiNL2mNL2qNLmuOLmyOLm2OLW6OLW+OLHCOLHGOLHKOK3OOK3SOKnWOKnaOKneOKXiOKXmOKHqOKHqOKHuOJ3yOJ32OJ36O"
  + "Jn+OJoCOJoGOJYKOJYONJISNJIWNJIaNI4eNI4iNI4mNIomNIoqNIouNIYyNIY2MIY6MII+MIJCMIJGMH5KMH5OLH5SLH5WLH5aLHpeKHpiKHp"
  + "mKHpmKHpqJHpuJHpyJHp2IHp6IHp+IHqCHH6GHH6KGH6OGIKSFIKWFIaaFIaeEIqeEI6iDI6mCJKqCJauBJqyBJ62AKK5/Ka9/KrB+K7F9LLF9"
  + "LrJ8L7N7MLR6MrV6M7Z5Nbd4Nrh3OLl2Obl2O7p1Pbt0PrxzQL1yQr5xRL5wRb9vR8BuScFtS8JsTcJrT8NpUcRoU8VnVcZmV8ZlWcdkW8hiXs"
  + "lhYMlgYspfZMtdZ8xcacxba81Zbc5YcM5Wcs9VdNBUd9BSedFRfNJPftJOgdNMg9NLhtRJiNVHi9VGjdZEkNZDktdBldc/l9g+mtg8ndk6n9k4"
  + "oto3pdo1p9szqtsyrdwwr9wust0std0rt90put4nvd4mv98kwt8ixd8hx+AfyuAezeAdz+Ec0uEb1OEa1+IZ2uIY3OIY3+MY4eMY5OMY5+QZ6e"
  + "QZ7OQa7uUb8eUc8+Ue9uYf+OYh+uYi/eck"
);

export const signed = table(
  "ZwAfaQAfbAEfbwIgcgMgdQQheAUhewYifgcigQgjhAkjhwokigskjQwlkA0lkw4mlg8mmRAnmxAnnhEnoRIopBMopxQpqhUprRYqsBcqshkrtB"
  + "wttR8utiEvuCQxuScyuyozvC00vjA2vzI3wDU4wjg6wzs7xT48xkA+x0M/yUZByklCzExDzU9EzlFG0FRH0VdJ01pK1F1L1mBN12JP2GVR2WhT"
  + "2mpV221X3XBZ3nJb33Vd4Hhf4Xth4n1j5IBl5YNo5oVq54hs6Itu6o1w65By7JN07ZZ27ph475t68Z588qB+86OA9KaD9KiG9KqI9ayL9a6O9b"
  + "CQ9rKT9rSW97aY97mb97ue+L2h+L+j+MGm+cOp+cWr+ceu+sqx+sy0+s62+9C5+9K8+9S+/NbB/NjE/dvH/NzI/N3K/N7M/N/O++DQ++HS++LU"
  + "++PW+uTX+uXZ+ufb+ujd+enf+erh+evj+ezl+e3n+O7o+O/q+PDs+PLu9/Pw9/Ty9/X09/b29vb29PX28/X28fT28PP17vP17fL16/H06vH06P"
  + "D05+/05e7z5O7z4u3z4ezz3+zy3uvy3Ory2+nx2enx2Ojx1ufx1efw0+bw0uXw0eXwzuPvzOLuyeHtx9/txN7swt3rv9zrvdrqutnpuNjotdfo"
  + "s9XnsNTmrtPmq9LlqdDkp8/kpM7jos3in8vhncrhmsngmMjflcbfk8XekMTdjcLcisDbh77ahLzZgLrYfbjXerbWd7TVdLLTcbDSbq7Ra6zQaK"
  + "rPZajOYabNXqTMW6LLWKDKVZ7JUpzIT5rHTJjGSZbFRpTEQ5PDQZHCQI/BP43APYu/PIq+O4i9OYa8OIS7N4O6NYG5NH+5M324MXy3MHq2L3i1"
  + "LXa0LHWzK3OyKXGxKG+wJ22wJWyvJGquI2itIWasIGSqH2KnHmCkHV6hHFyeGlqbGViYGFaVF1STFlGQFU+NFE2KE0uHEkmEEUeBD0V+DkN7DU"
  + "B4DD51CzxyCjpvCThsCDZpBzRmBjJjBTBh"
);

/** Three bytes an entry. */
function table(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
